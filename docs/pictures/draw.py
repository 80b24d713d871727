#!/usr/bin/env python3
# Draws the placement of variables and the data exchanged under each strategy, and a measured learning curve.
# SPDX-License-Identifier: Apache-2.0
"""Usage: draw.py           writes the .svg files next to this script
          draw.py --check   fails if a file differs from the drawing
"""
import csv
import html
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
STYLE = """
text { font: 13px sans-serif; fill: #1f2937; text-anchor: middle; }
.title { font-weight: 600; text-anchor: start; }
.small { font-size: 12px; fill: #4b5563; }
.code { font: 12px monospace; text-anchor: start; white-space: pre; }
.process { fill: #f8fafc; stroke: #94a3b8; stroke-dasharray: 5 4; }
.device { fill: #ffffff; stroke: #475569; }
.replica { fill: #dbeafe; stroke: #3b82f6; }
.variable { fill: #fef3c7; stroke: #d97706; }
.batch { fill: #dcfce7; stroke: #16a34a; }
.data { stroke: #16a34a; }
.gradient { stroke: #2563eb; }
.value { stroke: #d97706; }
.exchange { stroke: #94a3b8; }
line { stroke-width: 1.8; }
"""
COLOURS = {"data": "#16a34a", "gradient": "#2563eb", "value": "#d97706"}


class Picture:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts, self.kinds = width, height, title, [], set()

    def box(self, kind, x, y, width, height, *lines, title=False):
        """Adds a rectangle with lines of text, which are centred, or a title at the top."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        first = y + 18 if title else y + height / 2 + 4.5 - 8 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x + 12 if title else x + width / 2, first + 16 * i, line, "title" if title else "")

    def text(self, x, y, line, kind="small"):
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(line)}</text>')

    def arrow(self, kind, x1, y1, x2, y2, label="", both=False, dx=0, dy=-6):
        self.kinds |= {"gradient", "value"} if kind == "exchange" else {kind}
        end = "gradient" if kind == "exchange" else kind
        start = f' marker-start="url(#{"value" if kind == "exchange" else kind})"' if both else ""
        self.parts.append(f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" marker-end="url(#{end})"{start}/>')
        if label:
            self.text((x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy, label)

    def device(self, x, y, name, replica, variables, height=150):
        """Adds a device with its replica and its variables."""
        self.box("device", x, y, 150, height, name, title=True)
        if replica:
            self.box("replica", x + 12, y + 28, 126, 46, replica, "step")
        if variables:
            self.box("variable", x + 12, y + height - 58, 126, 46, *variables)

    def matrix(self, kind, x, y, width, height, part, caption):
        """Adds a matrix with a caption, and marks the part on a device. `part` has x, y, width and height, as fractions."""
        self.box("process", x, y, width, height)
        self.box(kind, x + width * part[0], y + height * part[1], width * part[2], height * part[3])
        self.text(x + width / 2, y + height + 17, caption)

    def legend(self, y):
        """Adds a centred legend with the kinds of arrows in the picture."""
        names = {"data": "rows of the batch", "gradient": "gradients", "value": "values"}
        kinds = [kind for kind in names if kind in self.kinds]
        for i, kind in enumerate(kinds):
            x = self.width / 2 - 75 * len(kinds) + 150 * i + 10
            self.arrow(kind, x, y, x + 26, y)
            self.parts.append(f'<text class="small" style="text-anchor: start" x="{x + 33:g}" y="{y + 4}">{names[kind]}</text>')

    def svg(self):
        markers = "".join(f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                          f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
                          for name, colour in COLOURS.items())
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" role="img">\n<title>{html.escape(self.title)}</title>\n<style>{STYLE}</style>\n'
                f'<defs>{markers}</defs>\n<rect width="{self.width}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def one_loop():
    p = Picture(840, 356, "One training loop under six strategies gives the same weights")
    p.box("process", 20, 74, 276, 190, "one training loop", title=True)
    for i, line in enumerate(("auto scope = strategy.scope();", "Sequential model(...);", "Sgd optimizer(...);", "",
                              "for (const auto& batch : batches)", "  strategy.run(train_step, batch);")):
        p.text(34, 126 + 22 * i, line, "code")
    for i, (name, where) in enumerate((("OneDeviceStrategy", "one device"), ("MirroredStrategy", "a copy on each device"),
                                       ("CentralStorageStrategy", "variables on one device, steps on all"),
                                       ("FullyShardedStrategy", "a shard on each device"),
                                       ("MultiWorkerMirroredStrategy", "a copy on each device of each process"),
                                       ("ParameterServerStrategy", "on servers, whole or in shards"))):
        y = 14 + 54 * i
        p.box("variable", 350, y, 270, 46, name, where)
        p.arrow("gradient", 296, 129 + 16 * i, 349, y + 23)
        p.arrow("value", 620, y + 23, 679, 129 + 16 * i)
    p.box("batch", 680, 119, 140, 100, "one hash of", "all weights:", "the same bits")
    p.text(420, 348, "on CPUs, in synchronous steps, with the same number of replicas, batch and seed")
    return p


def one_device():
    p = Picture(560, 230, "OneDeviceStrategy: everything is on one device")
    p.box("batch", 20, 83, 110, 40, "batch")
    p.device(205, 30, "cpu:0", "replica 0", ("variables", "and slots"))
    p.arrow("data", 130, 103, 204, 103, "all rows")
    p.arrow("gradient", 255, 104, 255, 120)
    p.arrow("value", 305, 120, 305, 106)
    p.text(455, 88, "gradients and values")
    p.text(455, 105, "stay where they are:")
    p.text(455, 122, "nothing is sent")
    p.legend(208)
    return p


def mirrored():
    p = Picture(640, 350, "MirroredStrategy: a copy of every variable on each device")
    p.box("process", 20, 70, 600, 240, "one process", title=True)
    p.box("batch", 145, 14, 350, 32, "global batch: a slice of its rows for each replica")
    for i, x in enumerate((45, 245, 445)):
        p.device(x, 105, f"cpu:{i}", f"replica {i}", ("copy of the", "variables, slots"))
        p.arrow("data", 220 + 100 * i, 46, x + 75, 104)
        p.arrow("gradient", x + 75, 180, x + 75, 196)
    for x in (195, 395):
        p.arrow("gradient", x, 188, x + 50, 188, both=True)
    p.text(320, 278, "gradients are summed over replicas along one tree (all_reduce), while the backward")
    p.text(320, 295, "pass still runs; equal sums update every copy, so that all copies stay equal")
    p.legend(330)
    return p


def central_storage():
    p = Picture(640, 370, "CentralStorageStrategy: variables on one device, steps on all")
    p.box("process", 20, 70, 600, 260, "one process", title=True)
    p.box("batch", 145, 14, 350, 32, "global batch: a slice of its rows for each replica")
    for i, x in enumerate((45, 245, 445)):
        p.device(x, 100, f"gpu:{i}", f"replica {i}", None, height=88)
        p.arrow("data", 220 + 100 * i, 46, x + 75, 99)
        p.arrow("gradient", x + 62, 189, 262 + 46 * i, 224)
        p.arrow("value", 284 + 46 * i, 224, x + 88, 189)
    p.box("device", 195, 225, 250, 80, "cpu:0, the parameter device", title=True)
    p.box("variable", 220, 249, 200, 46, "variables and slots,", "once")
    p.text(105, 262, "values are read")
    p.text(105, 279, "by every replica")
    p.text(530, 262, "gradients are summed")
    p.text(530, 279, "and applied once")
    p.legend(350)
    return p


def fully_sharded():
    p = Picture(640, 366, "FullyShardedStrategy: a part of every variable on each device")
    p.box("process", 20, 70, 600, 256, "one process", title=True)
    p.box("batch", 145, 14, 350, 32, "global batch: a slice of its rows for each replica")
    for i, x in enumerate((45, 245, 445)):
        p.device(x, 105, f"cpu:{i}", f"replica {i}", (f"part {i} of all", "variables, slots"))
        p.arrow("data", 220 + 100 * i, 46, x + 75, 104)
        p.arrow("gradient", x + 55, 180, x + 55, 196)
        p.arrow("value", x + 95, 196, x + 95, 180)
    for x in (195, 395):
        p.arrow("gradient", x, 160, x + 50, 160, both=True)
        p.arrow("value", x, 216, x + 50, 216, both=True)
    p.text(320, 278, "a layer's values are gathered while it computes (all_gather); each replica receives")
    p.text(320, 295, "only its own part of the gradient sum (reduce_scatter, along mirrored's tree), and updates")
    p.text(320, 312, "that part; the results are bit-identical")
    p.legend(346)
    return p


def multi_worker():
    p = Picture(820, 362, "MultiWorkerMirroredStrategy: a copy of every variable on each device of each process")
    for w, left in enumerate((20, 440)):
        p.box("process", left, 60, 360, 216, f"worker {w}", title=True)
        p.box("batch", left + 55, 12, 250, 30, "its replicas' slices of the global batch")
        for i, x in enumerate((left + 20, left + 190)):
            p.device(x, 95, f"cpu:{i}", f"replica {2 * w + i}", ("copy of the", "variables, slots"))
            p.arrow("data", left + 130 + 100 * i, 42, x + 75, 94)
            p.arrow("gradient", x + 75, 170, x + 75, 186)
        p.arrow("gradient", left + 170, 178, left + 190, 178, both=True)
        p.text(left + 180, 266, "summed within the process first")
    p.text(340, 78, "the chief")
    p.arrow("gradient", 380, 178, 440, 178, both=True)
    p.text(410, 160, "sums")
    p.text(410, 302, "between workers: shared memory on one machine, TCP (or NCCL, MPI) between machines;")
    p.text(410, 319, "every worker runs the same program and makes the same calls")
    p.legend(344)
    return p


def parameter_server():
    p = Picture(820, 392, "ParameterServerStrategy: variables, whole or in shards, on servers")
    for w, x in enumerate((90, 335, 580)):
        p.box("process", x - 10, 14, 170, 128)
        p.device(x, 24, f"worker {w}, cpu:0", f"replica {w}", None, height=88)
        p.text(x + 75, 132, "reads its rows of the input")
        for s, left in enumerate((150, 490)):
            p.arrow("exchange", x + 55 + 40 * s, 143, left + 90 * w, 225, both=True)
    for s, x in enumerate((130, 450)):
        p.box("process", x - 10, 226, 240, 92, f"ps {s}", title=True)
        p.box("variable", x + 6, 250, 208, 56, "rows 0 to 2 of a table," if s == 0 else "rows 3 and 4 of the table,",
              "with their slots" if s == 0 else "another variable, slots")
    p.text(410, 338, "workers read values (of a table: the rows they look up) and send gradients;")
    p.text(410, 354, "the server updates where the values are, in steps of all workers or whenever a gradient arrives")
    p.legend(376)
    return p


def mesh_matmul():
    p = Picture(860, 424, "x [batch, in] times kernel [in, out], sharded over the axis model of two devices")
    whole, left, right, upper, lower = (0, 0, 1, 1), (0, 0, .5, 1), (.5, 0, .5, 1), (0, 0, 1, .5), (0, .5, 1, .5)
    cuts = {"columns: no exchange": [(whole, "whole", left, "left half", left, "left half"),
                                     (whole, "whole", right, "right half", right, "right half")],
            "rows: one sum": [(left, "left half", upper, "upper half", whole, "partial sum"),
                              (right, "right half", lower, "lower half", whole, "partial sum")]}
    for at, (name, devices) in zip((20, 440), cuts.items()):
        p.box("process", at, 14, 400, 396, name, title=True)
        for centre, heading in ((78, "x [batch, in]"), (202, "kernel [in, out]"), (326, "y [batch, out]")):
            p.text(at + centre, 56, heading)
        for i, (x, x_caption, kernel, kernel_caption, y, y_caption) in enumerate(devices):
            top = 66 + 156 * i
            p.box("device", at + 16, top, 368, 122, f"cpu:{i}", title=True)
            p.matrix("batch", at + 48, top + 30, 60, 60, x, x_caption)
            p.text(at + 134, top + 65, "×", "")
            p.matrix("variable", at + 160, top + 30, 84, 60, kernel, kernel_caption)
            p.text(at + 264, top + 65, "=", "")
            p.matrix("replica", at + 284, top + 30, 84, 60, y, y_caption)
    p.arrow("value", 766, 189, 766, 221, both=True)
    p.text(714, 209, "one sum")
    p.text(220, 209, "nothing is sent")
    p.text(220, 368, "Each device has columns of y. The next kernel,")
    p.text(220, 385, "if it is sharded by rows, uses them directly.")
    p.text(640, 368, "Each device has a product with the shape of y.")
    p.text(640, 385, "The sum of both is y, and both devices get it.")
    return p


def mesh_grid():
    p = Picture(860, 402, "A mesh data=2, model=2: rows of the batch and columns of the kernel on four devices")
    for i, x in enumerate((270, 648)):
        p.text(x, 26, f"model {i}", "")
    for row in range(2):
        top = 40 + 154 * row
        p.text(46, top + 65, f"data {row}", "")
        for column in range(2):
            at, rows, columns = 94 + 378 * column, (0, .5 * row, 1, .5), (.5 * column, 0, .5, 1)
            p.box("device", at, top, 352, 122, f"cpu:{2 * row + column}", title=True)
            p.matrix("batch", at + 24, top + 30, 60, 60, rows, ("rows 0 to 15", "rows 16 to 31")[row])
            p.text(at + 106, top + 65, "×", "")
            p.matrix("variable", at + 130, top + 30, 84, 60, columns, ("columns 0 to 31", "columns 32 to 63")[column])
            p.text(at + 236, top + 65, "=", "")
            p.matrix("replica", at + 258, top + 30, 84, 60, (.5 * column, .5 * row, .5, .5), "a quarter")
            if row:
                p.arrow("gradient", at + 172, 163, at + 172, 193, both=True)
        p.arrow("value", 447, top + 60, 471, top + 60, both=True)
    p.text(459, 340, "A batch [32, 16] times a kernel [16, 64]. Gradients of the kernel are summed over the axis data;")
    p.text(459, 357, "parts of activations are exchanged over the axis model, where an operation needs them.")
    p.legend(384)
    return p


def gpt_learning_curve():
    """Draws the losses in gpt_losses.csv; docs/gpt.md has the command that measures them."""
    with open(FOLDER / "gpt_losses.csv", encoding="utf-8", newline="") as file:
        rows = [(float(row["tokens"]), float(row["loss"])) for row in csv.DictReader(file)]
    left, right, top, bottom, most = 70, 600, 50, 300, 6.0
    last = rows[-1][0]
    p = Picture(640, 362, "Loss of a GPT in training on the King James Bible")

    def place(tokens, loss):
        return left + (right - left) * tokens / last, bottom - (bottom - top) * loss / most

    for loss in range(int(most) + 1):
        y = place(0, loss)[1]
        p.parts.append(f'<line stroke="#e2e8f0" x1="{left}" y1="{y:g}" x2="{right}" y2="{y:g}"/>')
        p.text(left - 16, y + 4, str(loss))
    for part in range(5):
        x = place(last * part / 4, 0)[0]
        p.text(x, bottom + 20, f"{last * part / 4e6:.1f}")
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*row) for row in rows))
    p.parts.append(f'<polyline fill="none" stroke="#2563eb" stroke-width="2" points="{points}"/>')
    p.text((left + right) / 2, 28, p.title, "")
    p.text((left + right) / 2, bottom + 44, "millions of bytes seen; nats per byte, each point the mean of ten steps")
    return p


def main():
    wrong = []
    for draw in (one_loop, one_device, mirrored, central_storage, fully_sharded, multi_worker, parameter_server,
                 mesh_matmul, mesh_grid, gpt_learning_curve):
        path, text = FOLDER / f"{draw.__name__}.svg", draw().svg()
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(path.name)
    for name in wrong:
        print(f"docs/pictures/{name} differs from the output of draw.py; run docs/pictures/draw.py")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
