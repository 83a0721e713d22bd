#!/usr/bin/env python3
"""Records what a PyTorch program asks for on the GPU, as a trace that weir's bench and example replay.

usage: traces/record.py FILE.trace.gz PROGRAM.py [ARGUMENTS...]

Runs the program with PyTorch's memory history on, without stacks, and writes the allocations and frees of the first GPU in
their order (traces/README.md has the format) once the program has ended, also if it ended by an exception. A free counts
where the program asks for it, also while another stream that the block was recorded for still works on it.
"""

import gzip
import os
import runpy
import sys


def lines_of(history):
    """One line an event; what was allocated before the recording is left out, and so is its free."""
    streams, ids = {0: 0}, {}
    allocated = 0
    for entry in history:
        stream = streams.setdefault(entry["stream"], len(streams))
        if entry["action"] == "alloc":
            ids[entry["addr"]] = allocated
            yield f"a {allocated} {entry['size']} {stream}\n"
            allocated += 1
        elif entry["action"] == "free_requested" and entry["addr"] in ids:
            yield f"f {ids.pop(entry['addr'])} {stream}\n"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    path, program = sys.argv[1:3]
    if not os.path.isfile(program):
        sys.exit(f"record.py: {program}: there is no such program")
    import torch

    if not torch.cuda.is_available():
        sys.exit("record.py: PyTorch sees no GPU, and records the memory of GPUs only")
    torch.cuda.memory._record_memory_history("all", context=None)
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(program))  # as if Python had run it
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        with gzip.open(path, "wt", compresslevel=9) as out:
            out.writelines(lines_of(history))


if __name__ == "__main__":
    main()
