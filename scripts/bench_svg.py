"""The pictures of plot-bench.py: bars by group and lines, both on a logarithmic scale, as SVG text."""

import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 440, 56, 12, 66, 64


class Scale:
    """A logarithmic axis that holds all values."""

    def __init__(self, values):
        self.low = 10 ** math.floor(math.log10(min(values)) - 1e-9)
        self.high = max(values) * 1.6
        self.decades = math.log10(self.high / self.low)

    def y(self, value):
        part = math.log10(max(value, self.low) / self.low) / self.decades
        return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)

    def ticks(self):
        decade = self.low
        while decade <= self.high:
            for times in (1, 2, 5) if self.decades < 2.5 else (1,):
                if decade * times <= self.high:
                    yield decade * times
            decade *= 10


def number(value):
    if value >= 10000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.4g}" if value < 10 else f"{value:.3g}"


def text(x, y, what, **style):
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(what)}</text>'


def frame(title, scale, names, colours, note):
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield text(LEFT, 20, title, font_size=15, font_weight="bold")
    x = LEFT
    for name in names:
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{colours[name]}"/>'
        yield text(x + 17, 44, name)
        x += 40 + 7 * len(name)
    for tick in scale.ticks():
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale.y(tick):.1f}" y2="{scale.y(tick):.1f}" stroke="#ccc"/>'
        yield text(LEFT - 6, scale.y(tick) + 4, f"{tick:,.6g}", text_anchor="end", fill="#444")
    yield text(LEFT, HEIGHT - 12, note, font_size=11, fill="#555")


def whisker(x, row, scale, colour):
    top, bottom = scale.y(row["max"]), scale.y(row["min"])
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def in_two_lines(name):
    """Split at the blank that is nearest to the middle."""
    blanks = [at for at, letter in enumerate(name) if letter == " "]
    if len(name) < 16 or not blanks:
        return [name]
    at = min(blanks, key=lambda blank: abs(blank - len(name) / 2))
    return [name[:at], name[at + 1 :]]


def bars(title, groups, colours, note):
    """`groups`: (name, allocator to figure)."""
    names = [name for name in colours if any(name in figures for _, figures in groups)]
    scale = Scale([value for _, by in groups for name in names if name in by for value in (by[name]["min"], by[name]["max"])])
    out = list(frame(title, scale, names, colours, note))
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = (room - 14) / len(names)
    for column, (group, figures) in enumerate(groups):
        start = LEFT + column * room + 7
        for place, name in enumerate(names):
            if name not in figures:
                continue
            row, x = figures[name], start + place * width
            y, middle = scale.y(row["median"]), x + (width - 2) / 2
            out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" fill="{colours[name]}"/>')
            out.append(whisker(middle, row, scale, "#222"))
            top = min(y, scale.y(row["max"])) - 4
            out.append(
                text(middle + 4, top, number(row["median"]), font_size=10, transform=f"rotate(-90 {middle + 4:.1f} {top:.1f})",
                     font_weight="bold" if name.startswith("weir") else "normal")
            )
        for line, part in enumerate(in_two_lines(group)):
            out.append(text(start + (room - 14) / 2, HEIGHT - BOTTOM + 16 + 14 * line, part, text_anchor="middle"))
    return "\n".join([*out, "</svg>", ""])


def lines(title, series, colours, note):
    """`series`: allocator to (threads, figure), in any order."""
    names = [name for name in colours if name in series]
    scale = Scale([value for points in series.values() for _, row in points for value in (row["min"], row["max"])])
    out = list(frame(title, scale, names, colours, note))
    counts = sorted({count for points in series.values() for count, _ in points})
    step = (WIDTH - LEFT - RIGHT - 80) / max(1, len(counts) - 1)
    place = {count: LEFT + 40 + index * step for index, count in enumerate(counts)}
    for count, x in place.items():
        out.append(text(x, HEIGHT - BOTTOM + 16, f"{count} threads" if count > 1 else "1 thread", text_anchor="middle"))
    for shift, name in enumerate(names):
        # a little beside each other, or the spreads would hide one another
        points = [(place[count] + 3 * shift, row) for count, row in sorted(series[name], key=lambda point: point[0])]
        path = " ".join(f"{x:.1f},{scale.y(row['median']):.1f}" for x, row in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        for x, row in points:
            out.append(whisker(x, row, scale, colours[name]))
            out.append(f'<circle cx="{x:.1f}" cy="{scale.y(row["median"]):.1f}" r="3" fill="{colours[name]}"/>')
    return "\n".join([*out, "</svg>", ""])
