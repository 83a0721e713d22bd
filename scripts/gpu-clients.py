#!/usr/bin/env python3
"""PyTorch and CuPy with weir, on this machine's GPU.

usage: scripts/gpu-clients.py [--prefix DIR] [--steps N] [--operations N] [--only torch|graphs|cupy,...]

torch   a GPT-like model trains with varying lengths, its batches copied on a stream of their own (record_stream), with
        PyTorch's own allocator and with weir in its place: the losses must be the same, bit for bit
graphs  a training step is captured and replayed, with PyTorch's own pool and with weir's memory in a torch.cuda.MemPool:
        the same; out of memory there is torch.OutOfMemoryError, and once the graph is gone its memory is back
cupy    random operations on several streams, each checked with NumPy

Prints a line for each; needs PyTorch or CuPy for GPUs as far as these are asked for, and an installed weir. Each run is a
process of its own. Ends with a status other than 0 if anything failed or could not be run.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time

MIB = 1 << 20


def model_of(torch, width=512, layers=6, heads=8, words=4096, longest=1024):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (
                part.view(batch, length, heads, width // heads).transpose(1, 2)
                for part in self.qkv(self.first(x)).split(width, dim=2)
            )
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.second(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(words, width), nn.Embedding(longest, width)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, tokens):
            x = self.word(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
            return self.head(self.norm(self.blocks(x)))

    def loss_of(model, tokens):
        guessed = model(tokens[:, :-1])
        return nn.functional.cross_entropy(guessed.flatten(0, 1), tokens[:, 1:].flatten())

    return Gpt, loss_of


def deterministic(torch):
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(7)


def run_torch(with_weir, steps):
    import torch

    if with_weir:
        import weir

        weir.use_with_torch()
    deterministic(torch)
    Gpt, loss_of = model_of(torch)
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    copies, lengths = torch.cuda.Stream(), random.Random(11)
    losses, times = [], []
    for _ in range(steps):
        tokens = torch.randint(0, 4096, (8, lengths.randrange(64, 1024))).pin_memory()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.cuda.stream(copies):
            on_gpu = tokens.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        on_gpu.record_stream(torch.cuda.current_stream())
        loss = loss_of(model, on_gpu)
        del on_gpu  # the work that uses it is still queued
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        losses.append(loss.item().hex())
    refused = ""
    if with_weir:
        found = weir.stats()
        used, held = found["used_bytes_peak"], found["reserved_bytes_peak"]
        assert found["allocations"] > 100 * steps, found
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:
            refused = str(error)
        assert refused.startswith("CUDA out of memory. "), refused
        torch.cuda.empty_cache()
        torch.ones(1000, device="cuda").sum().item()
    else:
        used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"losses": losses, "times": times, "used": used, "held": held, "what": f"PyTorch {torch.__version__}"}


def run_graphs(with_weir, steps):
    import torch

    deterministic(torch)
    Gpt, loss_of = model_of(torch, layers=4)
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True)
    tokens = torch.randint(0, 4096, (8, 512), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, tokens).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph, options, pool = torch.cuda.CUDAGraph(), {}, None
    if with_weir:
        import weir

        weir.stats()  # makes weir's pool before anything is captured
        pool = torch.cuda.MemPool(weir.mem_pool_allocator().allocator())
        options["pool"] = pool.id
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, **options):
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
    losses, times = [], []
    for n in range(steps):
        tokens.copy_(torch.randint(0, 4096, (8, 512), generator=torch.Generator().manual_seed(n)))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        losses.append(loss.item().hex())
    used = held = 0
    if with_weir:
        found = weir.stats()
        used, held = found["used_bytes_peak"], found["reserved_bytes_peak"]
        assert found["allocations"] > 0, "the MemPool asked weir for nothing"
        try:
            with torch.cuda.use_mem_pool(torch.cuda.MemPool(weir.mem_pool_allocator().allocator())):
                torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
            raise AssertionError("32 TiB were allocated")
        except torch.OutOfMemoryError:
            pass
        # the graph goes, and with it all that it held: nobody but the driver says so
        optimizer.zero_grad(set_to_none=True)
        graph.reset()
        del loss, pool, options
        gc.collect()
        torch.cuda.empty_cache()
        # what is left is PyTorch's own: workspaces of cuBLAS from the capture
        until, found = time.monotonic() + 10, weir.stats()
        while found["reserved_bytes"] > found["used_bytes"] + 64 * MIB and time.monotonic() < until:
            weir.squeeze()
            time.sleep(0.01)
            found = weir.stats()
        assert found["used_bytes"] < used / 8 and found["reserved_bytes"] <= found["used_bytes"] + 64 * MIB, found
    return {"losses": losses, "times": times, "used": used, "held": held, "what": f"PyTorch {torch.__version__}"}


def run_cupy(operations):
    import cupy
    import numpy
    import weir

    weir.use_with_cupy()
    dice = random.Random(5)
    streams = [cupy.cuda.Stream.null] + [cupy.cuda.Stream(non_blocking=bool(n % 2)) for n in range(3)]
    kept = []  # what was computed, what it must be, and the stream it is on
    for n in range(operations):
        stream = dice.choice(streams)
        shape = (dice.randrange(1, 600), dice.randrange(1, 600))
        values = numpy.random.default_rng(n).integers(-1000, 1000, shape)
        with stream:
            there = cupy.asarray(values)
            kind = dice.randrange(5)
            if kind == 0:
                kept.append((cupy.sort(there, axis=1), numpy.sort(values, axis=1), stream))
            elif kind == 1:
                kept.append(((there * 3 + 1).sum(axis=0), (values * 3 + 1).sum(axis=0), stream))
            elif kind == 2:
                kept.append((cupy.concatenate([there, there.T.reshape(shape)]), numpy.concatenate([values, values.T.reshape(shape)]), stream))
            elif kind == 3:
                kept.append((cupy.cumsum(there.ravel()), numpy.cumsum(values.ravel()), stream))
            else:
                kept.append((there[::2, ::3].copy(), values[::2, ::3], stream))
        del there  # in no stream's block
        while len(kept) > 20:
            got, want, on = kept.pop(dice.randrange(len(kept)))
            on.synchronize()
            numpy.testing.assert_array_equal(cupy.asnumpy(got, stream=on), want)
    for got, want, on in kept:
        on.synchronize()
        numpy.testing.assert_array_equal(cupy.asnumpy(got, stream=on), want)
    kept.clear()
    try:
        cupy.empty(1 << 50, dtype=cupy.uint8)
        raise AssertionError("1 PiB was allocated")
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    found = weir.stats()
    assert found["allocations"] > operations, found
    return {"used": found["used_bytes_peak"], "held": found["reserved_bytes_peak"], "what": f"CuPy {cupy.__version__}"}


def child(job, steps, operations):
    if job == "cupy":
        return run_cupy(operations)
    kind, allocator = job.split("-")
    return {"torch": run_torch, "graphs": run_graphs}[kind](allocator == "weir", steps)


def ask(job, arguments):
    """What a run in a process of its own found; None if it failed."""
    command = [sys.executable, "-B", os.path.abspath(__file__), "--child", job]
    command += ["--steps", str(arguments.steps), "--operations", str(arguments.operations)]
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    folders = [os.path.join(arguments.prefix, "share", "weir", "python"), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode != 0 or not lines:
        print(f"{job}: FAILED with status {done.returncode}")
        print(done.stderr.decode(errors="replace")[-3000:])
        return None
    return json.loads(lines[-1])


def step_ms(run):
    late = sorted(run["times"][len(run["times"]) // 10 :])
    return late[len(late) // 2] * 1e3


def compare(kind, arguments):
    native, weir = ask(f"{kind}-native", arguments), ask(f"{kind}-weir", arguments)
    if native is None or weir is None:
        return False
    same = native["losses"] == weir["losses"]
    first, last = (float.fromhex(native["losses"][n]) for n in (0, -1))
    print(
        f"{kind}: {native['what']}, {len(native['losses'])} steps, loss {first:.4f} to {last:.4f}, "
        f"{'equal bit for bit' if same else 'FAILED: the losses differ'}; "
        f"median step {step_ms(native):.2f} ms native, {step_ms(weir):.2f} ms weir; "
        + (f"peak used / held {native['used'] / MIB:.0f} / {native['held'] / MIB:.0f} MiB native, " if native["held"] else "")
        + f"{weir['used'] / MIB:.0f} / {weir['held'] / MIB:.0f} MiB weir"
    )
    if not same:
        n = next(n for n, pair in enumerate(zip(native["losses"], weir["losses"])) if pair[0] != pair[1])
        print(f"{kind}: step {n}: {native['losses'][n]} native, {weir['losses'][n]} weir")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", default=os.environ.get("PREFIX", "build/prefix"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--operations", type=int, default=500)
    parser.add_argument("--only", default="torch,graphs,cupy")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.steps, arguments.operations)))
        return 0
    arguments.prefix = os.path.abspath(arguments.prefix)
    good = True
    for kind in arguments.only.split(","):
        if kind == "cupy":
            found = ask("cupy", arguments)
            good &= found is not None
            if found:
                print(
                    f"cupy: {found['what']}, {arguments.operations} operations on 4 streams, all as NumPy says; peak used / "
                    f"held {found['used'] / MIB:.0f} / {found['held'] / MIB:.0f} MiB"
                )
        elif kind in ("torch", "graphs"):
            good &= compare(kind, arguments)
        else:
            parser.error(f"nothing is called {kind}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
