#!/usr/bin/env python3
"""plot-memory.py: draws docs/images/memory.svg from the text in docs/measurements.

Bars are peak memory held over peak memory live, one group per trace. weir's figures are the `cold` rows that
examples/replay prints, the other allocators' are `reserved/live`. To draw again after a change:

    build/replay/replay --no-check --replays 5 TRACE... > docs/measurements/replay-host.txt
    scripts/plot-memory.py

(and put the comment lines back, which say where and when). Needs Python 3 alone.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "docs" / "measurements"
NAMES = {
    "weir": ("weir", "#0b5394"),
    "torch": ("PyTorch", "#f4a582"),
    "torch-expandable": ("PyTorch, expandable segments", "#d6604d"),
    "cudaMallocAsync": ("cudaMallocAsync", "#9fbf8f"),
    "rmm-pool": ("RMM pool", "#b9b3c9"),
}
WIDTH, HEIGHT, LEFT, TOP, PLOT = 920, 400, 46, 64, 270
MOST = 3.25


def weir(path):
    rows = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 15 and words[1] == "cold":
            rows[words[0]] = float(words[6])
    return rows


def peers(path):
    rows = {}
    for line in path.read_text().splitlines():
        found = re.match(r"(\S+)\s+(\S+)\s.*reserved/live (\S+)$", line)
        if found and not line.startswith("#"):
            rows.setdefault(found[1], {})[found[2]] = float(found[3])
    return rows


def draw(figures):
    traces = sorted(figures["torch"])
    missing = [(name, trace) for name in NAMES for trace in traces if trace not in figures.get(name, {})]
    if missing:
        raise SystemExit(f"no figure for {missing}")
    y = lambda value: TOP + PLOT * (1 - value / MOST)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        "<title>Peak memory held over peak memory live, by trace and allocator</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="bold" fill="#222">'
        "Peak memory held / peak memory live (1.0: nothing wasted; lower is better)</text>",
    ]
    x = LEFT
    for name, colour in NAMES.values():
        out.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 17}" y="44" fill="#222">{name}</text>')
        x += 42 + 7 * len(name)
    for tick in (0, 1, 2, 3):
        dash, colour = ("", "#444") if tick in (0, 1) else (' stroke-dasharray="3 3"', "#bbb")
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="{colour}"{dash}/>'
        )
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#444">{tick}.0</text>')
    group = (WIDTH - 10 - LEFT) / len(traces)
    bar = (group - 18) / len(NAMES)
    for column, trace in enumerate(traces):
        start = LEFT + column * group + 9
        for place, (key, (_, colour)) in enumerate(NAMES.items()):
            value, left = figures[key][trace], start + place * bar
            weight = ' font-weight="bold"' if key == "weir" else ""
            out.append(
                f'<rect x="{left:.1f}" y="{y(value):.1f}" width="{bar - 3:.1f}" height="{y(0) - y(value):.1f}" '
                f'fill="{colour}"/>'
            )
            out.append(
                f'<text x="{left + (bar - 3) / 2:.1f}" y="{y(value) - 4:.1f}" text-anchor="middle" font-size="11" '
                f'fill="#222"{weight}>{value:.2f}</text>'
            )
        out.append(f'<text x="{start + (group - 18) / 2:.1f}" y="{y(0) + 18:.1f}" text-anchor="middle" fill="#222">{trace}</text>')
    out.append(
        f'<text x="{LEFT}" y="{HEIGHT - 14}" font-size="11" fill="#555">'
        "First replay on an empty allocator. weir: host memory. The others: one NVIDIA H200. "
        "Recorded PyTorch workloads, 2026-11-21.</text>"
    )
    return "\n".join([*out, "</svg>", ""])


def main():
    figures = peers(TEXT / "peers-trace.txt")
    figures["weir"] = weir(TEXT / "replay-host.txt")
    image = ROOT / "docs" / "images" / "memory.svg"
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_text(draw(figures))


if __name__ == "__main__":
    main()
