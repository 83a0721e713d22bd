#!/usr/bin/env python3
"""plot-bench.py: tables and pictures from what scripts/bench.sh has measured. Needs Python 3 alone.

    plot-bench.py --table DIR            prints a table of DIR/*.jsonl
    plot-bench.py --take host|gpu DIR    keeps DIR/*.jsonl as docs/measurements/bench-host.jsonl or bench-gpu.jsonl,
                                         then does what follows
    plot-bench.py                        draws docs/images/bench-*.svg from docs/measurements/bench-*.jsonl and fills
                                         in the tables of docs/performance.md, between its markers
"""

import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_svg

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
KINDS = {"host": "Host memory", "gpu": "GPU memory"}
# Every allocator there is, in the order of columns and colours.
ALLOCATORS = {
    "weir": "#0b5394",
    "weir-declared": "#3d85c6",
    "weir-untold": "#6fa8dc",
    "weir-host": "#0b5394",
    "cudaMallocAsync": "#7fb069",
    "torch": "#f4a582",
    "torch-expandable": "#d6604d",
    "rmm-pool": "#b9b3c9",
    "rmm-arena": "#7b6fa0",
    "thrust-pool": "#e0b040",
    "cupy-pool": "#50b0b0",
    "malloc": "#f4a582",
    "mimalloc": "#7fb069",
    "jemalloc": "#b9b3c9",
    "null": "#cccccc",
}
CHURN = [
    "same size 4 KiB", "same size 1 MiB", "immediate reuse 64 KiB", "small varying 256 B - 1 MiB",
    "large varying 1 - 256 MiB", "varying 256 B - 64 MiB", "transformer step",
]
PRESSURE = "8 GiB kept 90 % full"


def joined(before, row):
    """The figures of two processes, as if one had measured all rounds."""
    rounds = before["rounds"] + row["rounds"]
    return {**row, "rounds": rounds, "median": statistics.median(rounds), "min": min(rounds), "max": max(rounds)}


class Results:
    """What was measured: figures by scenario, case, metric and allocator, in the order in which they came."""

    def __init__(self, text):
        self.figures, self.runs = {}, []
        for line in text.splitlines():
            row = json.loads(line)
            if "run" in row:
                self.runs.append({"allocator": row["allocator"], **row["run"]})
            else:
                key = (row["scenario"], row["case"], row["metric"])
                figures = self.figures.setdefault(key, {})
                before = figures.get(row["allocator"])
                figures[row["allocator"]] = joined(before, row) if before else row
        found = {name for by in self.figures.values() for name in by}
        self.allocators = [name for name in ALLOCATORS if name in found] + sorted(found - set(ALLOCATORS))

    def get(self, scenario, case, metric):
        return self.figures.get((scenario, case, metric), {})

    def cases(self, scenario):
        return list(dict.fromkeys(case for kind, case, _ in self.figures if kind == scenario))

    def others(self):
        """Those that weir is to be better than: not Thrust's pool, which keeps no stream order."""
        return [name for name in self.allocators if not name.startswith("weir") and name not in ("null", "thrust-pool")]


def short(value, unit=""):
    """Three digits, or all that are left of the point; of ratios three behind it."""
    if unit == "x":
        return f"{value:.3f}"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def median(row):
    return row.get("text") or short(row["median"], row["unit"])


def spread(row):
    if row["min"] == row["max"]:
        return median(row)
    return f"{median(row)} ({short(row['min'], row['unit'])} – {short(row['max'], row['unit'])})"


def sections(results):
    """Title, what its first column is called, and rows of (name, figures)."""
    churn = [(f"{case}, ns per alloc + free", results.get("churn", case, "time")) for case in CHURN]
    for case in CHURN + [PRESSURE]:
        churn.append((f"{case}: requests failed, %", results.get("churn", case, "failed")))
    churn.append((f"{PRESSURE}, ns per request", results.get("pressure", PRESSURE, "time")))
    churn.append((f"{PRESSURE}: requests failed, %", results.get("pressure", PRESSURE, "failed")))
    yield "Calls", "scenario", churn

    rates = []
    for scenario, what in (
        ("threads", "threads: "),
        ("large-threads", "threads, 256 KiB to 4 MiB: "),
        ("producer-consumer", "producers and consumers: "),
    ):
        for case in results.cases(scenario):
            rates.append((what + case, results.get(scenario, case, "rate")))
            rates.append((f"{what}{case}: requests failed, %", results.get(scenario, case, "failed")))
    yield "Threads, million pairs a second", "how many, and where", rates

    batches = []
    for case in results.cases("batch"):
        for metric in ("single calls", "batches"):
            batches.append((f"{case}, {metric}", results.get("batch", case, metric)))
    yield "Batches, ns per alloc + free", "blocks", batches

    traces = sorted(results.cases("trace"))
    for title, metric in (
        ("cold, total, ms", "cold, total"),
        ("second replay, ns per event", "second replay"),
        ("fifth replay, ns per event", "warm"),
        ("seventh replay, ns per event", "seventh replay"),
        ("warm, p50 of events, ns", "warm, p50"),
        ("warm, p99 of events, ns", "warm, p99"),
        ("warm, longest event, ns", "warm, longest"),
        ("peak reserved / peak live", "reserved / live"),
    ):
        yield f"Traces: {title}", "trace", [(trace, results.get("trace", trace, metric)) for trace in traces]

    for title, metric in (("tenth replay, ns per event", "tenth replay"), ("calls of the driver in the tenth", "driver calls 10")):
        rows = [(trace, results.get("turns", trace, metric)) for trace in sorted(results.cases("turns"))]
        yield f"Traces whose halves are two threads' in turn: {title}", "trace", rows

    calls = []
    for trace in traces:
        for number in range(1, 6):
            calls.append((f"{trace}, replay {number}", results.get("trace", trace, f"driver calls {number}")))
    yield "Traces: calls of the driver", "trace", calls

    fits = []
    for trace in sorted(results.cases("fit")):
        for metric, times in (("least capacity", "one replay"), ("least, 3 replays", "three replays")):
            above = results.get("fit", trace, metric + " above")
            figures = {name: {**row, "text": f"> {short(row['median'], 'x')}"} for name, row in above.items()}
            fits.append((f"{trace}, {times}", {**figures, **results.get("fit", trace, metric)}))
    yield "Least capacity / peak live", "trace", fits

    for scenario, what in (("rounds", "Rounds"), ("busy", "Rounds of streams at work")):
        for title, metric in (
            ("first round, ns per alloc + free", "first round"),
            ("24th round, ns per alloc + free", "last round"),
            ("peak reserved / peak live", "reserved / live"),
            ("calls of the driver in the 24th", "driver calls, last round"),
            ("the last one with a page call", "last round with a page call"),
        ):
            cases = results.cases(scenario)
            yield f"{what}: {title}", "program", [(case, results.get(scenario, case, metric)) for case in cases]

    for title, metric in (
        ("first 20 rounds, ns per alloc + free", "first rounds"),
        ("last 20 of 200 rounds, ns per alloc + free", "last rounds"),
        ("peak reserved / what the threads need apart", "reserved / apart"),
        ("calls of the driver in a round of the last 20", "driver calls, a round"),
        ("page calls in a round of the last 20", "page calls, a round"),
    ):
        cases = sorted(results.cases("crowd"), key=lambda case: int(case.split()[0]))
        yield f"Threads with rounds of their own: {title}", "threads", [(case, results.get("crowd", case, metric)) for case in cases]

    python = [(case, results.get("churn", case, "interpreter")) for case in CHURN]
    python += [(trace, results.get("trace", trace, "interpreter")) for trace in traces]
    yield "What the Python interpreter alone takes of these figures, ns", "scenario", python


def terminal(results):
    """Medians alone: the spreads are in the files."""
    width = max(len(name) for _, _, rows in sections(results) for name, figures in rows if figures)
    for title, _, rows in sections(results):
        shown = [(name, figures) for name, figures in rows if figures]
        if shown:
            columns = [name for name in results.allocators if any(name in figures for _, figures in shown)]
            print(f"{title:{width}}" + "".join(f"  {name:>16}" for name in columns))
            for name, figures in shown:
                cells = [median(figures[column]) if column in figures else "-" for column in columns]
                print(f"  {name:{width - 2}}" + "".join(f"  {cell:>16}" for cell in cells))
            print()


def markdown(results):
    for title, first, rows in sections(results):
        shown = [(name, figures) for name, figures in rows if figures]
        if not shown:
            continue
        columns = [name for name in results.allocators if any(name in figures for _, figures in shown)]
        yield f"**{title}**\n"
        yield f"| {first} | " + " | ".join(columns) + " |"
        yield "|---|" + "---:|" * len(columns)
        for name, figures in shown:
            cells = [spread(figures[column]) if column in figures else "–" for column in columns]
            yield f"| {name} | " + " | ".join(cells) + " |"
        yield ""


def worst(results, scenario, metric):
    """The largest median over all traces, of those allocators that completed each."""
    each = [results.get(scenario, trace, metric) for trace in results.cases(scenario)]
    names = set.intersection(*(set(figures) for figures in each)) if each else set()
    return {name: max(figures[name]["median"] for figures in each) for name in results.allocators if name in names}


def goals(results):
    """What weir is to reach: the name of each, all figures of this run, the goal, and whether less is better."""

    def single(scenario, case, metric):
        return {name: row["median"] for name, row in results.get(scenario, case, metric).items()}

    def over_traces(scenario, metric):
        return worst(results, scenario, metric)

    for case, goal in zip(CHURN, (20, 20, 20, 40, 80, None, 40)):
        if goal:
            yield f"{case}, ns", single("churn", case, "time"), goal, min
    yield "fifth replay, mean of the worst trace, ns per event", over_traces("trace", "warm"), 40, min
    yield "seventh replay, mean of the worst trace, ns per event", over_traces("trace", "seventh replay"), 40, min
    yield "warm replay, p99 of the worst trace, ns", over_traces("trace", "warm, p99"), 150, min
    for trace in sorted(results.cases("trace")):
        yield f"cold replay of {trace}, ms", single("trace", trace, "cold, total"), 1, min
    yield "calls of the driver in the fifth replay, worst trace", over_traces("trace", "driver calls 5"), 0, min
    yield "1 thread, million pairs/s", single("threads", "1, own streams", "rate"), 25, max
    yield "16 threads, own streams, million pairs/s", single("threads", "16, own streams", "rate"), 300, max
    yield "16 threads, one stream, million pairs/s", single("threads", "16, one stream", "rate"), 10, max
    yield f"{PRESSURE}: requests failed, %", single("pressure", PRESSURE, "failed"), 0, min
    yield f"{PRESSURE}, ns per request", single("pressure", PRESSURE, "time"), 2000, min
    yield "peak reserved / peak live, worst trace", over_traces("trace", "reserved / live"), 1.03, min
    yield "least capacity / peak live, worst trace", over_traces("fit", "least capacity"), 1.01, min


# Goals that are so many times the best of the others in the same run.
BEATEN = {"cold replay of": "below the best", "16 threads, one stream": "10 × the best"}


def is_met(name, ours, others, goal, best):
    if name.startswith(tuple(BEATEN)):
        goal *= best(others.values())
        return ours < goal if best is min else ours >= goal
    return ours <= goal if best is min else ours >= goal


def compared():
    """The runs whose goals are told beside each other: those that the table in docs/measurements/README.md names."""
    folder = ROOT / "docs" / "measurements"
    names = re.findall(r"^\| `(bench-gpu[^`]*\.jsonl)`", (folder / "README.md").read_text(), re.MULTILINE)
    return [Results((folder / name).read_text()) for name in names]


def goals_table(results, runs):
    """What was reached in this run, by the best of the others too, and in how many of all runs declared streams met it."""

    def apart(results, figures):
        return {other: figures[other] for other in results.others() if other in figures}

    measured = {}
    for run in runs:
        for name, figures, goal, best in goals(run):
            others = apart(run, figures)
            if "weir-declared" in figures and (others or not name.startswith(tuple(BEATEN))):
                ours = figures["weir-declared"]
                measured.setdefault(name, []).append((ours, is_met(name, ours, others, goal, best)))
    yield "| | goal | weir | weir, declared streams | best of the others | declared, all runs | met in |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, figures, goal, best in goals(results):
        others = apart(results, figures)
        leader = best(others, key=others.get) if others else None
        unit = "x" if "/" in name and "peak" in name else ""
        text = f"{short(others[leader], unit)} ({leader})" if leader else "–"
        ours, declared = (short(figures[name], unit) if name in figures else "–" for name in ("weir", "weir-declared"))
        words = next((words for begin, words in BEATEN.items() if name.startswith(begin)), None)
        sign = "" if goal == 0 else "≤ " if best is min else "≥ "
        each = measured.get(name, [])
        values = sorted(value for value, _ in each)
        spread = "–" if not each else short(values[0], unit)
        if each and short(values[-1], unit) != spread:
            spread += f" – {short(values[-1], unit)}"
        met = f"{sum(met for _, met in each)} of {len(each)}"
        yield f"| {name} | {words or sign + short(goal)} | {ours} | {declared} | {text} | {spread} | {met} |"


def provenance(results):
    """Where and when: the same for all, or by allocator."""
    run = results.runs[0]
    costs = [float(run["clock, ns"]) for run in results.runs if "clock, ns" in run]
    measured = dict.fromkeys(f"{run['allocator']}: {run['measured']}" for run in results.runs if run["measured"])
    settings = dict.fromkeys(f"`{run['environment']}` for {run['allocator']}" for run in results.runs if run.get("environment"))
    loads = [float(run["load"]) for run in results.runs]
    yield f"Measured {run['date'][:10]} on {run['cores']} cores, {run['processor']}. " + "; ".join(measured) + "."
    yield f"Load average when each process began: {min(loads):g} to {max(loads):g}, the bench's own threads among it."
    rounds = max(len(row["rounds"]) for by in results.figures.values() for row in by.values())
    yield f"{rounds} rounds at most. The clock's own cost, at most {max(costs):g} ns, is taken off single events."
    if settings:
        yield "Set were " + ", ".join(settings) + "."
    yield ""


def pictures(kind, results):
    """File name, what it shows, and the drawing."""
    shown = [name for name in results.allocators if name != "null"]
    colours = {name: ALLOCATORS.get(name, "#888888") for name in shown}
    note = f"{KINDS[kind]}, {results.runs[0]['date'][:10]}. Medians of the rounds; thin lines from the least to the greatest."

    def bars(title, cases, scenario, metric):
        groups = [(case, results.get(scenario, case, metric)) for case in cases]
        return bench_svg.bars(title, [group for group in groups if group[1]], colours, note)

    yield "calls", "Time of an allocation and a free", bars(
        "ns per alloc + free, on a logarithmic scale (lower is better)", CHURN, "churn", "time"
    )
    traces = sorted(results.cases("trace"))
    yield "traces", "Time of an event in the fifth replay of a trace", bars(
        "Recorded traces, fifth replay: ns per event (lower is better)", traces, "trace", "warm"
    )
    series = {}
    for case in results.cases("threads"):
        number, streams = case.split(", ")
        for name, row in results.get("threads", case, "rate").items():
            if streams == "own streams" and name in colours:
                series.setdefault(name, []).append((int(number), row))
    yield "threads", "Pairs a second by threads", bench_svg.lines(
        "Million pairs of alloc + free a second, by threads on streams of their own (higher is better)",
        series, colours, note,
    )
    held = [trace for trace in traces if len(results.get("trace", trace, "reserved / live")) > 1]
    if held:
        yield "held", "Peak memory held over peak memory live", bars(
            "Peak memory held / peak memory live, first replay (lower is better)", held, "trace", "reserved / live"
        )


def fill(page, kind, lines):
    start, end = f"<!-- bench {kind} -->", f"<!-- end of bench {kind} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"plot-bench: {PAGE} has no '{start}' … '{end}'")
    return before + start + "\n" + "\n".join(lines) + "\n" + end + after


def draw():
    page = PAGE.read_text()
    for kind in KINDS:
        kept = ROOT / "docs" / "measurements" / f"bench-{kind}.jsonl"
        if not kept.exists():
            continue
        results = Results(kept.read_text())
        lines = list(provenance(results))
        for name, title, svg in pictures(kind, results):
            image = ROOT / "docs" / "images" / f"bench-{kind}-{name}.svg"
            image.write_text(svg)
            lines += [f"![{title}](images/{image.name})", ""]
        if "weir" in results.allocators:
            page = fill(page, "goals", goals_table(results, compared()))
        lines += markdown(results)
        page = fill(page, kind, lines)
    PAGE.write_text(page)


def collected(folder):
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise SystemExit(f"plot-bench: there is no *.jsonl in {folder}")
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            check(line, f"{file}:{number}")
    text = "".join(file.read_text() for file in files)
    if '"metric"' not in text:
        raise SystemExit(f"plot-bench: the files *.jsonl in {folder} have no figures; look into the logs of the bench")
    return text


def check(line, where):
    """A bench that was stopped may have left half a line."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SystemExit(f"plot-bench: {where} is no row of a bench: {error}; take the line out") from None
    wanted = {"allocator", "run"} if "run" in row else {"allocator", "scenario", "case", "metric", "rounds"}
    if missing := wanted - set(row):
        raise SystemExit(f"plot-bench: {where} is no row of a bench, it has no {', '.join(sorted(missing))}; take the line out")


def main(words):
    if len(words) == 2 and words[0] == "--table":
        terminal(Results(collected(words[1])))
    elif len(words) == 3 and words[0] == "--take" and words[1] in KINDS:
        (ROOT / "docs" / "measurements" / f"bench-{words[1]}.jsonl").write_text(collected(words[2]))
        draw()
    elif not words:
        draw()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
