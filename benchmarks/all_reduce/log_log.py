# Draws lines over logarithmic axes as SVG, with the standard library only.
# SPDX-License-Identifier: Apache-2.0
"""log_log.py RESULTS.csv...    redraws each file as an .svg file next to it"""
import csv
import html
import math
import pathlib
import sys

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 70, 40, 640, 420, 210, 50
COLORS = ("#1b6ca8", "#c0664f", "#4a8f5c", "#8a5fb0", "#b08d2f", "#3aa6a6", "#c24d86", "#777777")


def size_name(size):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}"
    return f"{size:g} B"


def draw(lines, title, y_title):
    """Returns the SVG of `lines`, {name: list of (x, y)}. Lines whose name begins with "floor" are dashed."""
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low = 10.0 ** math.floor(math.log10(min(y for _, y in points)))
    y_high = 10.0 ** math.ceil(math.log10(max(y for _, y in points)))

    def x_of(value):
        return LEFT + WIDTH * math.log(value / x_low) / math.log(max(x_high / x_low, 2.0))

    def y_of(value):
        return TOP + HEIGHT * (1 - math.log(value / y_low) / math.log(y_high / y_low))

    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="11">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="20" font-size="14">{html.escape(title)}</text>',
           f'<text x="12" y="{TOP + HEIGHT / 2}" transform="rotate(-90 12 {TOP + HEIGHT / 2})" '
           f'text-anchor="middle">{html.escape(y_title)}</text>']
    size = x_low
    while size <= x_high * 1.001:
        out.append(f'<line x1="{x_of(size):.1f}" x2="{x_of(size):.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#ddd"/>'
                   f'<text x="{x_of(size):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{size_name(size)}</text>')
        size *= 4
    decade = y_low
    while decade <= y_high * 1.001:
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y_of(decade):.1f}" y2="{y_of(decade):.1f}" '
                   f'stroke="#bbb"/><text x="{LEFT - 6}" y="{y_of(decade) + 4:.1f}" text-anchor="end">{decade:g}</text>')
        decade *= 10
    for i, (name, line) in enumerate(lines.items()):
        color = "black" if name.startswith("floor") else COLORS[i % len(COLORS)]
        dash = ' stroke-dasharray="5 4"' if name.startswith("floor") else ""
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{color}"/>' for x, y in line]
        y = TOP + 10 + 18 * i
        out.append(f'<line x1="{LEFT + WIDTH + 12}" x2="{LEFT + WIDTH + 36}" y1="{y}" y2="{y}" stroke="{color}" '
                   f'stroke-width="2"{dash}/><text x="{LEFT + WIDTH + 42}" y="{y + 4}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])


def write(path, lines, title, y_title):
    """Writes the figure to path.svg, and its numbers to path.csv."""
    path = pathlib.Path(path)
    with open(path.with_name(path.name + ".csv"), "w", encoding="utf-8", newline="") as file:
        file.write(f"# {title}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "bytes", y_title])
        writer.writerows([name, x, y] for name, line in lines.items() for x, y in line)
    path.with_name(path.name + ".svg").write_text(draw(lines, title, y_title))


def read(path):
    """Returns (lines, title, y_title) of a file that write() wrote."""
    with open(path, encoding="utf-8", newline="") as file:
        title = file.readline()[2:].strip()
        (_, _, y_title), *rows = csv.reader(file)
    lines = {}
    for name, x, y in rows:
        lines.setdefault(name, []).append((int(x), float(y)))
    return lines, title, y_title


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(pathlib.Path(name).with_suffix(""), *read(name))
