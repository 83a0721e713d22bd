#!/usr/bin/env python3
"""cupy_pool.py [options] [TRACE.gz...]: CuPy's memory pool on the scenarios that make sense from Python.

The scenarios, their names and the lines of JSON are those of bench.cpp. Threads are left out, since the interpreter
runs one at a time, and so are single events, which are shorter than what it takes to time them here. Each loop also
runs over an allocator that does nothing: "interpreter" is what Python itself takes of the figure beside it.
"""

import argparse
import gzip
import json
import math
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CAPACITIES = [1.0, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.17, 1.25, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0]
SKIPPED = 77


class Nothing:
    """An allocator that does nothing: what the interpreter costs."""

    def malloc(self, size):
        return size


class CuPy:
    name = "cupy-pool"

    def __init__(self):
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(0).use()
        self.refused = cupy.cuda.memory.OutOfMemoryError

    def describe(self):
        name = self.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return f"CuPy {self.cupy.__version__}, {name}"

    def begin(self, limit=0):
        pool = self.cupy.cuda.MemoryPool()
        if limit:
            pool.set_limit(size=int(limit))
        return pool

    def end(self, pool):
        self.synchronize()
        pool.free_all_blocks()

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def default_stream(self):
        return self.cupy.cuda.Stream.null

    def synchronize(self):
        self.cupy.cuda.Device(0).synchronize()


class Report:
    def __init__(self, path, name):
        self.file, self.name = open(path, "w") if path else None, name

    def line(self, fields):
        if self.file:
            self.file.write(json.dumps({"allocator": self.name, **fields}) + "\n")
            self.file.flush()

    def add(self, scenario, case, metric, unit, rounds):
        middle, low, high = statistics.median(rounds), min(rounds), max(rounds)
        print(f"{self.name:16} {scenario:17} {case:27} {metric:20} {middle:12.4f}  {low:12.4f} .. {high:<12.4f} {unit}", flush=True)
        figures = {"median": middle, "min": low, "max": high, "rounds": rounds}
        self.line({"scenario": scenario, "case": case, "metric": metric, "unit": unit, **figures})


def probe_core():
    best = math.inf
    for _ in range(8):
        start = time.perf_counter_ns()
        sum(range(500))
        best = min(best, time.perf_counter_ns() - start)
    return best


def move_to_quiet_core():
    """As in quiet.h. What the interpreter has in caches matters less than which core it is."""
    cores = os.sched_getaffinity(0)

    def time_on(core):
        os.sched_setaffinity(0, {core})
        return probe_core()

    os.sched_setaffinity(0, {min(cores, key=time_on)})
    os.sched_setaffinity(0, cores)


class Bench:
    def __init__(self, allocator, report, options):
        self.allocator, self.report, self.options = allocator, report, options
        self.rounds = options.rounds or (3 if options.quick else 7)

    def repeat(self, work, warm=True):
        def one():
            move_to_quiet_core()
            return work()

        def within(seconds):
            return time.perf_counter() - start < seconds

        figures, start = [], time.perf_counter()
        least = 0 if self.options.quick else self.options.seconds / 10
        if warm:
            one()
        while not figures or within(least) or (len(figures) < self.rounds and within(self.options.seconds)):
            figures.append(one())
        return figures

    def timed(self, count, work):
        start = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - start) / count

    def quickly(self, count):
        return count // 10 if self.options.quick else count

    def both(self, case, pairs, round_over):
        """One scenario over the pool and over nothing; round_over(malloc) does a round."""
        pool = self.allocator.begin()
        with self.allocator.stream():
            figures = self.repeat(lambda: self.timed(pairs, lambda: round_over(pool.malloc)))
            self.report.add("churn", case, "time", "ns/pair", figures)
        self.allocator.end(pool)
        figures = self.repeat(lambda: self.timed(pairs, lambda: round_over(Nothing().malloc)))
        self.report.add("churn", case, "interpreter", "ns/pair", figures)

    def churn(self, case, low, high, live, pairs):
        draw = random.Random(42)
        first = sizes(draw, low, high, live)
        after = sizes(draw, low, high, pairs)
        places = [draw.randrange(live) for _ in range(pairs)]

        def round_over(malloc):
            blocks = [malloc(size) for size in first]
            for place, size in zip(places, after):
                blocks[place] = None
                blocks[place] = malloc(size)
            blocks.clear()
            self.allocator.synchronize()

        self.both(case, pairs, round_over)

    def same_size(self):
        pairs = self.quickly(200_000)
        self.churn("same size 4 KiB", 4 * KIB, 4 * KIB, 64, pairs)
        self.churn("same size 1 MiB", MIB, MIB, 64, pairs)

    def varying(self):
        pairs = self.quickly(200_000)
        self.churn("small varying 256 B - 1 MiB", 256, MIB, 256, pairs)
        self.churn("large varying 1 - 256 MiB", MIB, 256 * MIB, 48, pairs // 10)
        self.churn("varying 256 B - 64 MiB", 256, 64 * MIB, 256, pairs)

    def reuse(self):
        pairs = self.quickly(200_000)

        def round_over(malloc):
            for _ in range(pairs):
                block = malloc(64 * KIB)
                del block
            self.allocator.synchronize()

        self.both("immediate reuse 64 KiB", pairs, round_over)

    def transformer(self):
        layers, batch, width, heads = 24, 8, 1024, 16
        steps = []
        for length in (512, 528, 544):
            hidden, scores = batch * length * width * 2, batch * heads * length * length * 2
            steps.append([hidden, 3 * hidden, scores, scores, hidden, 4 * hidden, 4 * hidden, hidden, batch * length * 8] * layers)
        count = self.quickly(200)

        def round_over(malloc):
            for step in range(count):
                live = [malloc(size) for size in steps[step % 3]]
                while live:
                    live.pop()
            self.allocator.synchronize()

        self.both("transformer step", count * len(steps[0]), round_over)

    def pressure(self):
        capacity, requests = 8 * GIB, self.quickly(50_000)
        full = capacity // 10 * 9
        wanted, failed = sizes(random.Random(7), 64 * KIB, 256 * MIB, requests), []

        def one():
            pool, draw, blocks, live, refused = self.allocator.begin(capacity), random.Random(8), [], 0, 0
            with self.allocator.stream():
                start = time.perf_counter_ns()
                for size in wanted:
                    while live + size > full and blocks:
                        place = int(draw.random() * len(blocks))
                        live -= blocks[place][1]
                        blocks[place] = blocks[-1]
                        blocks.pop()
                    try:
                        blocks.append((pool.malloc(size), size))
                        live += size
                    except self.allocator.refused:
                        refused += 1
                nanos = time.perf_counter_ns() - start
                blocks.clear()
            self.allocator.end(pool)
            failed.append(100 * refused / requests)
            return nanos / requests

        case = "8 GiB kept 90 % full"
        self.report.add("pressure", case, "time", "ns/request", self.repeat(one, warm=False))
        self.report.add("pressure", case, "failed", "%", failed)

    def replay(self, trace, malloc, streams):
        """Nanoseconds for all events, or None if a request was refused."""
        blocks, served, current = {}, True, None
        start = time.perf_counter_ns()
        try:
            for alloc, number, size, stream in trace.events:
                if alloc:
                    if stream != current:
                        streams[stream].use()
                        current = stream
                    blocks[number] = malloc(size)
                else:
                    del blocks[number]
        except self.allocator.refused:
            served = False
        nanos = time.perf_counter_ns() - start
        blocks.clear()
        streams[0].use()
        self.allocator.synchronize()
        return nanos if served else None

    def streams(self, trace):
        return [self.allocator.default_stream()] + [self.allocator.stream() for _ in range(1, trace.streams)]

    def trace(self):
        for path in self.options.traces:
            trace = Trace(path)
            streams, lives = self.streams(trace), []

            def one():
                pool = self.allocator.begin()
                nanos = [self.replay(trace, pool.malloc, streams)]
                ratio = pool.total_bytes() / trace.peak_live
                nanos += [self.replay(trace, pool.malloc, streams) for _ in range(4)]
                self.allocator.end(pool)
                if None not in nanos:
                    lives.append((nanos, ratio))

            self.repeat(one, warm=False)
            if not lives:
                self.report.add("trace", trace.name, "failed", "replays", [1])
                continue
            events = len(trace.events)
            self.report.add("trace", trace.name, "cold, total", "ms", [nanos[0] / 1e6 for nanos, _ in lives])
            self.report.add("trace", trace.name, "second replay", "ns/event", [nanos[1] / events for nanos, _ in lives])
            self.report.add("trace", trace.name, "warm", "ns/event", [nanos[4] / events for nanos, _ in lives])
            self.report.add("trace", trace.name, "reserved / live", "x", [ratio for _, ratio in lives])
            idle = self.repeat(lambda: self.replay(trace, Nothing().malloc, streams) / events)
            self.report.add("trace", trace.name, "interpreter", "ns/event", idle)

    def fit(self):
        for path in self.options.traces:
            trace = Trace(path)
            streams = self.streams(trace)
            for factor in CAPACITIES:
                pool = self.allocator.begin(trace.peak_live * factor)
                served = self.replay(trace, pool.malloc, streams) is not None
                self.allocator.end(pool)
                if served:
                    break
            metric = "least capacity" if served else "least capacity above"
            self.report.add("fit", trace.name, metric, "x", [factor])


SCENARIOS = {
    "same-size": Bench.same_size,
    "reuse": Bench.reuse,
    "varying": Bench.varying,
    "transformer": Bench.transformer,
    "pressure": Bench.pressure,
    "trace": Bench.trace,
    "fit": Bench.fit,
}


def sizes(draw, low, high, count):
    """Log-uniform."""
    return [int(math.exp(draw.uniform(math.log(low), math.log(high)))) if low != high else low for _ in range(count)]


class Trace:
    def __init__(self, path):
        self.name, self.events, self.streams, self.peak_live = Path(path).name.split(".")[0], [], 1, 0
        live, of = 0, {}
        for line in gzip.open(path, "rt"):
            kind, number, *rest = line.split()
            if kind == "a":
                of[number] = max(int(rest[0]), 1)
                live += of[number]
                self.peak_live = max(self.peak_live, live)
            else:
                live -= of[number]
            stream = int(rest[-1])
            self.streams = max(self.streams, stream + 1)
            self.events.append((kind == "a", number, of[number], stream))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="these scenarios alone: " + " ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    try:
        allocator = CuPy()
    except Exception as error:  # no CuPy, or no GPU that it can use
        print(f"bench: {CuPy.name}: skipped: {error}", file=sys.stderr)
        return SKIPPED
    report = Report(options.json, allocator.name)
    bench = Bench(allocator, report, options)
    report.line({
        "run": {
            "adaptor": allocator.name,
            "measured": allocator.describe() + f", Python {sys.version.split()[0]}",
            "processor": (re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or ["unknown"])[0],
            "cores": str(os.cpu_count()),
            "load": f"{os.getloadavg()[0]:.1f}",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rounds": str(bench.rounds),
            "quick": "yes" if options.quick else "no",
        }
    })
    for name in options.only.split(","):
        if name in SCENARIOS:
            SCENARIOS[name](bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
