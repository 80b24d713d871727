# Rows of gpu_check's table: the name of a check, its result, and its verdict.
# SPDX-License-Identifier: Apache-2.0
import json
import platform
import sys
import time
import traceback

PASS, FAIL, SKIPPED, MET, BELOW, SHOWN = "pass", "FAIL", "skipped", "goal met", "below goal", "shown"
CORRECTNESS, SPEED = "correctness", "speed"


class Row:
    """Row of the table. `measured` is a text, `numbers` are written to the JSON file, `detail` explains a failure."""

    def __init__(self, name, kind, verdict, measured="", goal="", numbers=None, detail="", required=True):
        self.name, self.kind, self.verdict, self.measured, self.goal = name, kind, verdict, measured, goal
        self.numbers, self.detail, self.required = numbers or {}, detail, required
        self.seconds = 0.0

    def result(self):
        return {FAIL: "failed", SKIPPED: "not run"}.get(self.verdict, "ran")

    def breaks(self):
        """Returns true if this row makes gpu_check fail. A missed speed goal does not."""
        return self.verdict == FAIL or (self.kind == CORRECTNESS and self.verdict == SKIPPED and self.required)


def passed(measured, goal="", **numbers):
    return Row("", CORRECTNESS, PASS, measured, goal, numbers)


def failed(measured, detail="", goal="", **numbers):
    return Row("", CORRECTNESS, FAIL, measured, goal, numbers, detail)


def skipped(why, required=False):
    return Row("", CORRECTNESS, SKIPPED, why, required=required)


def goal(measured, goal_text, reached, **numbers):
    """Returns a row about speed. `reached` is None if the goal does not apply, as on simulated GPUs."""
    verdict = SHOWN if reached is None else MET if reached else BELOW
    return Row("", SPEED, verdict, measured, goal_text, numbers)


class Step:
    """Step of gpu_check: run(place, runner) returns a Row or a list of them. `limit` is in seconds."""

    def __init__(self, name, kind, run, limit, slow=False, required=True):
        self.name, self.kind, self.run, self.limit = name, kind, run, limit
        self.slow, self.required = slow, required  # slow: left out by --quick


class Table:
    def __init__(self, flags):
        self.flags, self.rows, self.interrupted = flags, [], False
        self.begin = time.monotonic()

    def add(self, row, name=None, kind=None, seconds=0.0):
        row.name, row.kind = row.name or name, kind or row.kind
        row.seconds = seconds
        self.rows.append(row)
        print(f"{row.verdict:10}  {row.name}: {row.measured}", file=sys.stderr, flush=True)
        for line in row.detail.splitlines()[-12:]:
            print(f"            | {line}", file=sys.stderr, flush=True)

    def exit_code(self):
        broken = any(row.breaks() for row in self.rows)
        return 1 if broken or self.interrupted or not any(row.verdict == PASS for row in self.rows) else 0

    def verdict(self):
        count = {verdict: sum(row.verdict == verdict for row in self.rows)
                 for verdict in (PASS, FAIL, SKIPPED, MET, BELOW)}
        text = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
        what = "interrupted" if self.interrupted else "all correct" if self.exit_code() == 0 else "NOT all correct"
        if self.flags.simulate or self.flags.on_cpu:
            what += " (no GPU was used)"
        return f"gpu_check: {what}: {text}; {time.monotonic() - self.begin:.0f} s"

    def text(self):
        head = ("check", "result", "measured", "goal", "verdict", "s")
        cells = [(r.name, r.result(), shortened(r.measured), r.goal or "-", r.verdict, f"{r.seconds:.0f}") for r in self.rows]
        widths = [max(len(row[i]) for row in [head] + cells) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                 for row in [head, tuple("-" * width for width in widths)] + cells]
        return "\n".join(lines + [self.verdict()])

    def json(self):
        return {"verdict": self.verdict(), "exit_code": self.exit_code(), "machine": platform.platform(),
                "simulated": bool(self.flags.simulate or self.flags.on_cpu), "quick": self.flags.quick,
                "budget_seconds": self.flags.budget_seconds, "seconds": time.monotonic() - self.begin,
                "rows": [{"name": r.name, "kind": r.kind, "result": r.result(), "measured": r.measured, "goal": r.goal,
                          "verdict": r.verdict, "seconds": r.seconds, "numbers": r.numbers, "detail": r.detail}
                         for r in self.rows]}

    def finish(self, runner):
        print(self.text(), flush=True)
        if self.flags.json:
            with open(self.flags.json, "w", encoding="utf-8") as file:
                json.dump(self.json(), file, indent=1)
                file.write("\n")
        if runner.kept_logs():
            print(f"gpu_check: the output of the programs is in {runner.folder}", file=sys.stderr)


def shortened(text, width=120):
    return text if len(text) <= width else text[:width - 3] + "..."


def run_steps(steps, only, place, runner, table):
    """Runs the selected steps. Each step adds its rows to the table, even if it fails."""
    for step in steps:
        if only and not any(step.name.startswith(name) for name in only):
            continue
        begin = time.monotonic()
        if step.slow and place.flags.quick:
            found = skipped("--quick")
        elif runner.remaining() < min(5.0, step.limit):
            found = skipped(f"the budget of {place.flags.budget_seconds:g} s was used up", step.required)
        else:
            # The limits are meant for real GPUs; simulated ones are slower.
            runner.begin_step(step.name, 4 * step.limit if place.tiny else step.limit)
            try:
                found = step.run(place, runner)
            except Exception as error:  # an error in one check must not hide the other rows
                found = failed(f"gpu_check itself failed: {error!r}", traceback.format_exc())
        for row in found if isinstance(found, list) else [found]:
            table.add(row, step.name, step.kind, time.monotonic() - begin)
            begin = time.monotonic()
