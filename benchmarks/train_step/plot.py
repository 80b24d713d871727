# Draws ratios as bars with whiskers, as SVG, with the standard library only.
# SPDX-License-Identifier: Apache-2.0
"""plot.py RESULTS.csv...    redraws each file as an .svg file next to it"""
import csv
import html
import math
import pathlib
import sys

ROW, LEFT, WIDTH, RIGHT, TOP = 18, 330, 520, 90, 46


def draw(rows, title):
    """Returns the SVG of `rows`, dicts with label, median, min and max. The axis is logarithmic, with a line at 1."""
    low = min([0.5] + [r["min"] for r in rows])
    high = max([2.0] + [r["max"] for r in rows])

    def x(value):
        return LEFT + WIDTH * (math.log(value / low) / math.log(high / low))

    height = TOP + ROW * len(rows) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" '
           'font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="20" font-size="14">{html.escape(title)}</text>']
    tick = 2.0 ** math.ceil(math.log2(low))
    while tick <= high:
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{height - 24}" '
                   f'stroke="{"black" if tick == 1 else "#ddd"}"/>'
                   f'<text x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
        tick *= 2
    for i, row in enumerate(rows):
        y = TOP + ROW * i
        begin, end = sorted((x(1.0), x(row["median"])))
        color = "#4a8f5c" if row["median"] >= 1 else "#c0664f"
        out.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{html.escape(row["label"])}</text>'
                   f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(end - begin, 1):.1f}" height="{ROW - 6}" '
                   f'fill="{color}"/>'
                   f'<line x1="{x(row["min"]):.1f}" x2="{x(row["max"]):.1f}" y1="{y + 8}" y2="{y + 8}" '
                   'stroke="black"/>'
                   f'<text x="{LEFT + WIDTH + 8}" y="{y + 11}">{row["median"]:.2f}x</text>')
    return "\n".join(out + ["</svg>", ""])


def write(path, rows, title):
    """Writes the figure to path.svg, and its numbers to path.csv."""
    path = pathlib.Path(path)
    with open(path.with_name(path.name + ".csv"), "w", encoding="utf-8", newline="") as file:
        file.write(f"# {title}\n")
        writer = csv.DictWriter(file, ["label", "median", "min", "max"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    path.with_name(path.name + ".svg").write_text(draw(rows, title))


def read(path):
    """Returns (rows, title) of a file that write() wrote."""
    with open(path, encoding="utf-8", newline="") as file:
        title = file.readline()[2:].strip()
        return [{key: value if key == "label" else float(value) for key, value in row.items()}
                for row in csv.DictReader(file)], title


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(pathlib.Path(name).with_suffix(""), *read(name))
