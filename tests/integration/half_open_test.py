#!/usr/bin/env python3
# Drops data in both directions without closing connections. Workers must detect this, and results
# must be bit-identical to those of an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: half_open_test.py PROGRAM TUTTI [--log FILE]

`tutti run` starts two workers, each in a separate PID namespace if the system permits it, as if on separate machines. A proxy drops the
data of a data connection, of a control connection, of both, and of worker 1's entire network, without closing anything. A data connection
breaks after 5 s, and both workers repeat the step; a control connection is replaced within the step; a worker without network is reported
and restarted. Times are printed but do not fail the test (goals: 5.5 s for data connections, 2.5 s for
control connections). Weights, losses and optimizer state must be bit-identical to those of an undisturbed process.
"""
import subprocess
import tempfile
import time

import chaos_run  # noqa: E402  adds the path of the helpers
from processes import end_with, parse, run_mirrored  # noqa: E402

FLAGS = ["--batch-size", "60", "--train-examples", "12000", "--regularized", "--seed", "1", "--epochs", "1000"]
STEPS = 600
GOAL = 2.5  # seconds, for a control connection
DATA_GOAL = 5.5
DATA_IS_GONE = r"worker \d+: .*tcp: rank \d .* disconnected: "
CONTROL_IS_BACK = r"control: worker 1 received nothing from the control server .* and opened another connection"
NAMED = r"^\[worker-0\]: .*control: worker 1 \(.*\) is silent: no heartbeat for"


def own_machine():
    """Returns the command that runs a process in a separate PID namespace, or "" if the system does not permit this."""
    for words in ("unshare --pid --fork --kill-child", "unshare --user --map-root-user --pid --fork --kill-child"):
        try:
            if subprocess.run(words.split() + ["true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return words
        except OSError:
            return ""
    return ""


class Case:
    def __init__(self, run, name):
        self.run, self.name, self.found = run, name, []

    def begin(self, step):
        self.run.wait_for_step(step)
        self.run.wait_for(self.all_are_open, "all connections")

    def all_are_open(self):
        routes = [self.run.data_routes[0], *self.run.control_routes]
        return all(route.connections for route in routes)

    def find(self, pattern, since, what):
        self.found.append((what, self.run.wait_for_line(pattern, since, f"{self.name}: {what}").time - since))

    def report(self, next_step, goal=GOAL):
        times = ", ".join(f"{what} after {seconds:.2f} s" for what, seconds in self.found)
        print(f"  {self.name:38} {times}; next step after {next_step:.2f} s (goal {goal})", flush=True)


def swallow_existing(run, name, step, routes, lines, goes_back):
    case = Case(run, name)
    case.begin(step)
    since = time.monotonic()
    run.proxy.swallow([connection for route in routes for connection in route.connections])
    for pattern, what in lines:
        case.find(pattern, since, what)
    if goes_back:
        case.report(run.wait_for_recovery(since) - since, DATA_GOAL)
    else:
        healed = max(since + seconds for _, seconds in case.found)
        case.report(run.wait_for_next_step(healed) - since)


def swallow_all(run, name, step):
    case = Case(run, name)
    case.begin(step)
    since = time.monotonic()
    run.proxy.swallow_routes([run.control_routes[1], *run.data_routes])
    case.find(NAMED, since, "worker 1 named")
    run.proxy.heal()
    case.report(run.wait_for_recovery(since) - since, DATA_GOAL)


def main():
    arguments = parse(__doc__, "program", "tutti", log=None)
    flags, before = FLAGS + ["--steps", str(STEPS)], own_machine()
    print(f"  each worker {'has its own PID namespace' if before else 'shares this PID namespace'}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        calm = run_mirrored(arguments.program, 2, flags, folder, timeout=600)
        run = chaos_run.Run(arguments.tutti, arguments.program, 2, flags, folder, arguments.log, before)
        data, control = run.data_routes, run.control_routes[1:]

        def disturb():
            swallow_existing(run, "a data connection", 10, data, [(DATA_IS_GONE, "found")], True)
            swallow_existing(run, "both kinds of connections", 20, data + control,
                             [(CONTROL_IS_BACK, "control connected"), (DATA_IS_GONE, "found")], True)
            swallow_all(run, "the whole network of worker 1", 30)
            swallow_existing(run, "a control connection", 40, control, [(CONTROL_IS_BACK, "connected")], False)
            return lambda: ([], "")

        run.compare(disturb, calm)


if __name__ == "__main__":
    end_with(main)
