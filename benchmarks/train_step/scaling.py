#!/usr/bin/env python3
# Measures images per second, speed-up, efficiency, loss and accuracy of the same training in 1, 2
# and 4 processes.
# SPDX-License-Identifier: Apache-2.0
"""scaling.py --build build [--processes 1,2,4] [--rounds 3] [--min-efficiency 0.5] [--out benchmarks/results/scaling]

Runs examples/fashion_mnist_custom_loop, alone and under `tutti run -n N` with MultiWorkerMirroredStrategy. The global batch
does not depend on the number of processes, so all trainings have the same steps. Speed-up is the ratio of images per second
to those of one process in the same round; the table has the median of all rounds. Efficiency is speed-up / N. Exits with 1
if a row with at most as many processes as cores is below --min-efficiency.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import compare


def parse_flags(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="a build folder")
    parser.add_argument("--processes", default="1,2,4", help="numbers of processes, of which the first must be 1")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; each runs every number of processes once")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256, help="global batch size")
    parser.add_argument("--test-examples", type=int, default=10000, help="number of test examples for the accuracy")
    parser.add_argument("--min-efficiency", type=float, default=0.0)
    parser.add_argument("--out", default="", help="writes the table to OUT.txt")
    flags = parser.parse_args(arguments)
    flags.processes = [int(count) for count in flags.processes.split(",")]
    if flags.processes[0] != 1 or flags.rounds < 1 or flags.steps < 2:
        parser.error("expected --processes to begin with 1, --rounds >= 1 and --steps >= 2")
    return flags


def own_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_once(flags, count):
    """Trains in `count` processes. Returns the report of the program."""
    folder = pathlib.Path(flags.build).resolve()
    train = [str(folder / "examples" / "fashion_mnist_custom_loop"), "--devices", "cpu:0", "--steps", str(flags.steps),
             "--batch-size", str(flags.batch_size), "--test-examples", str(flags.test_examples)]
    if count == 1:
        command = train + ["--strategy", "one_device"]
    else:
        command = [str(folder / "bin" / "tutti"), "run", "-n", str(count), "--", *train, "--strategy", "multi_worker_mirrored"]
    with tempfile.TemporaryDirectory() as reports:
        path = os.path.join(reports, "report.json")
        busy, own, begin = compare.cpu_busy_seconds(), own_seconds(), time.monotonic()
        done = subprocess.run(command + ["--metrics-json", path], text=True, capture_output=True, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        if done.returncode != 0:
            sys.exit(f"scaling.py: {' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
        others = compare.cpu_busy_seconds() - busy - (own_seconds() - own)
        with open(path, encoding="utf-8") as file:
            return {**json.load(file), "foreign_cpus": max(0.0, others) / (time.monotonic() - begin)}


def measure(flags):
    """Returns the results of all rounds: a list of {number of processes: report}."""
    return [{count: run_once(flags, count) for count in flags.processes} for _ in range(flags.rounds)]


def rows(rounds):
    """Yields (number of processes, images/s, speed-up, efficiency, loss of the last step, accuracy)."""
    for count in rounds[0]:
        reports = [each[count] for each in rounds]
        speed_up = statistics.median(each[count]["examples_per_second"] / each[1]["examples_per_second"] for each in rounds)
        yield (count, statistics.median(report["examples_per_second"] for report in reports), speed_up, speed_up / count,
               reports[0]["final_loss"], reports[0]["accuracy"])


def table(flags, rounds, cores):
    others = max(report["foreign_cpus"] for each in rounds for report in each.values())
    lines = [compare.machine(), "scaling.py " + " ".join(sys.argv[1:]),
             f"Fashion-MNIST, a batch of {flags.batch_size}, {flags.steps} steps, median of {len(rounds)} "
             f"rounds; other programs used up to {others:.2f} CPUs",
             "processes  images/s  speed-up  efficiency    loss  accuracy"]
    for count, speed, speed_up, efficiency, loss, accuracy in rows(rounds):
        lines.append(f"{count:9} {speed:9.1f} {speed_up:9.2f} {efficiency:11.3f} {loss:7.4f} {accuracy:9.4f}"
                     f"{f'  {count} processes take turns on {cores} cores' if count > cores else ''}")
    return "\n".join(lines)


def too_slow(rounds, cores, least):
    """Returns errors about rows with a core for each process whose efficiency is below `least`."""
    return [f"{count} processes have an efficiency of {efficiency:.3f}; expected at least {least}"
            for count, _, _, efficiency, _, _ in rows(rounds) if count <= cores and efficiency < least]


def main():
    flags = parse_flags()
    cores = len(os.sched_getaffinity(0))
    rounds = measure(flags)
    text = table(flags, rounds, cores)
    print(text)
    if flags.out:
        pathlib.Path(flags.out + ".txt").write_text(text + "\n", encoding="utf-8")
    errors = too_slow(rounds, cores, flags.min_efficiency)
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
