#!/usr/bin/env python3
"""What PyTorch's cache of pinned memory holds for the blocks that c_tests/device/copy_rates.c asks a weir pool for: 64 places,
600 random replacements of 1 to 600 MiB, as many live as fit. Prints peak held / peak live.

  scripts/gpu-pinned.py [LIVE_MIB]     MiB of blocks live at a time (3000)
"""
import sys

MiB = 1 << 20
PLACES, STEPS, WORD = 64, 600, (1 << 64) - 1


def requests(limit):
    """Steps as the C program makes them: the places to empty, the place to fill, and the bytes."""
    sizes, live, state = [0] * PLACES, 0, 1
    for _ in range(STEPS):
        state = (state * 6364136223846793005 + 1442695040888963407) & WORD
        place = (state >> 33) % PLACES
        size = (1 + (state >> 40) % 600) * MiB - (state >> 20) % 4096
        emptied, at = [], place
        while sizes[place] or live + size > limit:
            if sizes[at]:
                live -= sizes[at]
                sizes[at] = 0
                emptied.append(at)
            at = (at + 1) % PLACES
        sizes[place] = size
        live += size
        yield emptied, place, size, live


def main():
    import torch

    limit = int(sys.argv[1] if len(sys.argv) > 1 else 3000) * MiB
    blocks, most = [None] * PLACES, 0
    torch.cuda.init()
    for emptied, place, size, live in requests(limit):
        for at in emptied:
            blocks[at] = None
        blocks[place] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        most = max(most, live)
    stats = torch.cuda.host_memory_stats()
    # what the cache has of the driver; older versions count it as allocated
    held = stats.get("reserved_bytes.peak") or stats["allocated_bytes.peak"]
    print(f"PyTorch {torch.__version__}, pinned memory: peak live {most / MiB:.0f} MiB, held {held / MiB:.0f} MiB, held / live {held / most:.3f}")


if __name__ == "__main__":
    main()
