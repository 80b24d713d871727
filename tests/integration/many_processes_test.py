#!/usr/bin/env python3
# Many more workers than cores: they connect, train and blame no one, on quiet cores and beside busy processes.
# SPDX-License-Identifier: Apache-2.0
"""Usage: many_processes_test.py PROGRAM TUTTI [--processes N] [--busy N]

`tutti run` starts N workers of linear_regression for 3 steps, alone and again beside busy processes. Judged: every worker
connects once, the chief has trained 3 steps over N replicas, and no line names a worker that is silent, dead or too late. The
processor seconds of all processes are printed.
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time

STEPS = 3
# The end of the first process that has finished ends the others: "died" is true then.
VERDICTS = re.compile(r"tries again|is silent|did not (come|answer|reach)|gave up")
CONNECTED = re.compile(r"^\[worker-\d+\]: \S+ info: workers: rank (\d+) of \d+", re.MULTILINE)


def wrong(output, metrics, num_processes):
    """What is wrong with a run; "": nothing."""
    if found := [line for line in output.splitlines() if VERDICTS.search(line)]:
        return "a false verdict: " + found[0]
    ranks = [int(match.group(1)) for match in CONNECTED.finditer(output)]
    if sorted(ranks) != list(range(num_processes)):
        return f"expected each of {num_processes} workers to connect once, got {len(ranks)} connected"
    if metrics is None or (metrics["steps"], metrics["num_replicas"]) != (STEPS, num_processes):
        return f"expected {STEPS} steps over {num_processes} replicas, got {metrics}"
    return ""


def run(arguments, num_busy):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            metrics = os.path.join(folder, "metrics.json")
            before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            # The exit code is 1: 3 steps do not reach the accuracy that the program expects.
            job = subprocess.run([arguments.tutti, "run", "-n", str(arguments.processes), "--", arguments.program, "--strategy",
                                  "multi_worker_mirrored", "--devices", "cpu:0", "--batch-size", "1024", "--steps", str(STEPS),
                                  "--metrics-json", metrics], capture_output=True, text=True, errors="replace", timeout=400,
                                 check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{arguments.processes} processes beside {num_busy}: {time.monotonic() - begin:.1f} s, {seconds:.1f} processor "
                  f"seconds, {seconds / arguments.processes:.2f} each", flush=True)
            read = None
            if os.path.exists(metrics):
                with open(metrics, encoding="utf-8") as file:
                    read = json.load(file)
            output = job.stdout + job.stderr
            if problem := wrong(output, read, arguments.processes):
                sys.exit(f"FAILED beside {num_busy} busy processes: {problem}\n{output[-6000:]}")
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--processes", type=int, default=96)
    parser.add_argument("--busy", type=int, default=8)
    arguments = parser.parse_args()
    for num_busy in (0, arguments.busy):
        run(arguments, num_busy)


main()
