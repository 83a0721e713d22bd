#!/usr/bin/env python3
"""plot-slack.py: draws docs/images/slack.svg from docs/measurements/bench-replay-slack.txt, and prints its table.

What `slack` trades: driver time (the price of the page calls of the first five replays of six traces, as docs/design.md
counts it) against memory held (peak held over peak live after the fifth). To draw again after a change:

    for slack in 0 0.005 ...; do echo "# slack $slack"; cargo bench --bench replay -- --replays 8 --slack $slack TRACE...; done

goes into that file, below the comment lines, which say where and when. Needs Python 3 alone.
"""

import re
from pathlib import Path

import bench_svg
from bench_svg import text

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "measurements" / "bench-replay-slack.txt"
DEFAULT = "0.025"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 400, 64, 30, 66, 64
SERIES = {"the six traces together": "#0b5394", "the worst of them": "#d6604d"}


class Replay:
    """One line of the benchmark."""

    def __init__(self, words):
        self.number = int(words[1])
        self.live, self.held, self.ratio = map(float, words[3:6])
        self.calls, self.price = sum(map(int, words[6:9])), float(words[-2])


def replays(path):
    """By slack, in the order of the file."""
    by = {}
    for line in path.read_text().splitlines():
        if found := re.match(r"# slack (\S+)", line):
            rows = by[found[1]] = []
        words = line.split()
        if len(words) >= 12 and words[1].isdigit():
            rows.append(Replay(words))
    return by


def price(rows, number):
    return sum(row.price for row in rows if row.number == number)


def calls(rows, number):
    return sum(row.calls for row in rows if row.number == number)


def table(by):
    print("| slack | price ms, replay 1 | 2 | 3 | 4 | 5 | page calls in replay 5 | 8 | worst held / live |")
    print("|---|---|---|---|---|---|---|---|---|")
    for slack, rows in by.items():
        prices = [f"{price(rows, number):.0f}" for number in range(1, 6)]
        name = f"**{slack}**" if slack == DEFAULT else slack
        worst = max(row.ratio for row in rows)
        print("|", " | ".join([name, *prices, str(calls(rows, 5)), str(calls(rows, 8)), f"{worst:.3f}"]), "|")


def points(rows):
    """Driver time, and memory held by all together and by the worst."""
    last = [row for row in rows if row.number == 5]
    time = sum(price(rows, number) for number in range(1, 6))
    return time, sum(row.held for row in last) / sum(row.live for row in last), max(row.ratio for row in last)


def draw(by):
    found = {slack: points(rows) for slack, rows in by.items()}
    most_time = max(time for time, _, _ in found.values()) * 1.1
    most_held = max(worst for _, _, worst in found.values()) + 0.005
    x = lambda held: LEFT + (held - 1) / (most_held - 1) * (WIDTH - LEFT - RIGHT)
    y = lambda time: HEIGHT - BOTTOM - time / most_time * (HEIGHT - BOTTOM - TOP)
    title = "Driver time of five replays of six traces (ms) against peak held / peak live, by slack"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 20, title, font_size=15, font_weight="bold"),
    ]
    for place, (name, colour) in enumerate(SERIES.items()):
        out.append(f'<rect x="{LEFT + 220 * place}" y="34" width="12" height="12" fill="{colour}"/>')
        out.append(text(LEFT + 220 * place + 17, 44, name))
    for time in range(0, int(most_time) + 1, 100):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(time):.1f}" y2="{y(time):.1f}" stroke="#ccc"/>')
        out.append(text(LEFT - 6, y(time) + 4, bench_svg.number(time), text_anchor="end", fill="#444"))
    for percent in range(0, int((most_held - 1) * 100) + 1):
        held = 1 + percent / 100
        out.append(f'<line x1="{x(held):.1f}" x2="{x(held):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(text(x(held), HEIGHT - BOTTOM + 16, f"{held:.2f}", text_anchor="middle", fill="#444"))
    for series, colour in enumerate(SERIES.values(), 1):
        places = [(slack, x(point[series]), y(point[0])) for slack, point in found.items()]
        path = " ".join(f"{left:.1f},{top:.1f}" for _, left, top in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for slack, left, top in places:
            out.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{5 if slack == DEFAULT else 3}" fill="{colour}"/>')
            out.append(text(left + 7, top - 5, slack, font_weight="bold" if slack == DEFAULT else "normal"))
    note = "Counting backend, calls priced as on one NVIDIA H200. Lower and further left is better; bold: the default."
    out.append(text(LEFT, HEIGHT - 12, note, font_size=11, fill="#555"))
    return "\n".join([*out, "</svg>", ""])


def main():
    by = replays(ROWS)
    if not by or not all(any(row.number == 8 for row in rows) for rows in by.values()):
        raise SystemExit(f"plot-slack: {ROWS} has no rows of eight replays for each slack; see the head of this script")
    table(by)
    (ROOT / "docs" / "images" / "slack.svg").write_text(draw(by))


if __name__ == "__main__":
    main()
