#!/usr/bin/env python3
# Runs many more workers than cores: on idle and on busy cores, they connect, train and report no
# failures.
# SPDX-License-Identifier: Apache-2.0
"""Usage: many_processes_test.py PROGRAM TUTTI [--processes N] [--busy N]

`tutti run` starts N workers of linear_regression for 3 steps, alone and with busy processes. Every worker must connect once, the chief must
train 3 steps over N replicas, and no line may report a silent, dead or late worker. CPU seconds are printed.
"""
import os
import re
import resource
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import Job, end_with, load, parse, require  # noqa: E402

STEPS = 3
# Does not include "died", because the launcher ends the others after the first exit with 1.
VERDICTS = re.compile(r"(tries|trying) again|is silent|did not (connect|answer|reach)|gave up")
CONNECTED = re.compile(r"^\[worker-\d+\]: \S+ info: workers: rank (\d+) of \d+", re.MULTILINE)


def run(arguments, num_busy):
    busy = [Job([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    count = arguments.processes
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.json")
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        # The exit code is 1, because after 3 steps the accuracy is lower than the program expects.
        job = Job([arguments.tutti, "run", "-n", str(count), "--", arguments.program, "--strategy", "multi_worker_mirrored",
                   "--devices", "cpu:0", "--batch-size", "1024", "--steps", str(STEPS), "--metrics-json", metrics])
        job.finish()
        text = job.text()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{count} processes besides {num_busy} busy ones: {time.monotonic() - begin:.1f} s, {seconds:.1f} CPU seconds, "
              f"{seconds / count:.2f} each", flush=True)
        for each in busy:
            each.kill()
        require(os.path.exists(metrics), "expected a metrics file", text[-6000:])
        got = load(metrics)
    verdicts = [line for line in text.splitlines() if VERDICTS.search(line)]
    require(not verdicts, f"false reports of failures with {num_busy} busy processes: {verdicts[:3]}", text[-6000:])
    ranks = sorted(int(rank) for rank in CONNECTED.findall(text))
    require(ranks == list(range(count)), f"expected each of {count} workers to connect once, got {len(ranks)} connected", text[-6000:])
    require((got["steps"], got["num_replicas"]) == (STEPS, count), f"expected {STEPS} steps over {count} replicas, got {got}")


def main():
    arguments = parse(__doc__, "program", "tutti", processes=96, busy=8)
    for num_busy in (0, arguments.busy):
        run(arguments, num_busy)


if __name__ == "__main__":
    end_with(main)
