#!/usr/bin/env python3
# One training program as several processes: the bits of one process, however they are connected.
# SPDX-License-Identifier: Apache-2.0
"""Usage: multi_worker_test.py PROGRAM [--steps N] [--tutti TUTTI] [--mpirun MPIRUN] [--keras PROGRAM]

PROGRAM is an example with the flags of examples/common. Each run must report the losses_hex, weights_hash and
slots_hash of MirroredStrategy with as many replicas (docs/determinism.md).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ports import free_ports  # noqa: E402

COMPARED = ("losses_hex", "weights_hash", "slots_hash")
# Epochs of 4 steps, the last one ragged, with a short evaluation: nothing that is compared depends on it.
FLAGS = ["--batch-size", "130", "--train-examples", "400", "--test-examples", "1000", "--regularized", "--seed", "1",
         "--epochs", "1000"]

# Name, replicas in all, devices of each worker, further flags.
RUNS = [
    ("2 processes", 2, ["cpu:0", "cpu:0"], []),
    ("2 processes x 2 devices", 4, ["cpu:0-1", "cpu:0-1"], []),
    ("4 processes", 4, ["cpu:0"] * 4, []),
    ("3 processes, 4 replicas", 4, ["cpu:0"] * 3, ["--replicas", "4"]),
    ("2 processes, tcp", 2, ["cpu:0", "cpu:0"], ["--transport", "tcp"]),
    ("2 processes, small packs", 2, ["cpu:0", "cpu:0"], ["--bytes-per-pack", "4096"]),
    ("2 processes, hierarchical_copy", 2, ["cpu:0", "cpu:0"], ["--cross-device-ops", "hierarchical_copy"]),
]
ALL_CUT = ["--min-shard-bytes", "0"]
SHARDED = [
    ("2 processes, fully sharded", 2, ["cpu:0", "cpu:0"], ALL_CUT),
    ("2 processes x 2 devices, fully sharded", 4, ["cpu:0-1", "cpu:0-1"], ALL_CUT),
    ("4 processes, fully sharded, stage 2", 4, ["cpu:0"] * 4, ALL_CUT + ["--stage", "2"]),
    ("3 processes, 4 replicas, fully sharded", 4, ["cpu:0"] * 3, ALL_CUT + ["--replicas", "4"]),
    ("2 processes, tcp, fully sharded, stage 1", 2, ["cpu:0", "cpu:0"], ALL_CUT + ["--stage", "1", "--transport", "tcp"]),
]


def start(program, flags, index, addresses, environment, log=None):
    """What the process writes goes to the file `log`, or to its stdout."""
    tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    with open(log or os.devnull, "w", encoding="utf-8") as file:
        return subprocess.Popen([program] + flags, text=True, stdout=file if log else subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                env={**os.environ, **environment, "TF_CONFIG": json.dumps(tf_config)})


def run_workers(program, devices, flags, folder, environment=None, strategy="multi_worker_mirrored"):
    """Starts one process per entry of `devices`, waits for all, and returns worker 0's metrics."""
    metrics = os.path.join(folder, "metrics.json")
    if os.path.exists(metrics):
        os.remove(metrics)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(devices))]
    processes = []
    for index, device in enumerate(devices):
        own = ["--strategy", strategy, "--devices", device, "--metrics-json", metrics]
        processes.append(start(program, flags + own, index, addresses, environment or {}))
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    for index, process in enumerate(processes):
        if process.returncode != 0:
            sys.exit(f"FAILED: worker {index} ended with {process.returncode}\n"
                     + "\n".join(f"--- worker {i}\n{text}" for i, text in enumerate(outputs)))
    if any("examples/s" in text for text in outputs[1:]):
        sys.exit("FAILED: a worker that is not the chief reported\n" + "\n".join(outputs))
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def run_launched(launcher, program, flags, folder, strategy="multi_worker_mirrored"):
    """Starts the workers by a launcher, and returns worker 0's metrics."""
    metrics = os.path.join(folder, "launched.json")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = launcher + [program, "--strategy", strategy, "--devices", "cpu:0",
                          "--metrics-json", metrics] + flags
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "0"}
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                            env={**os.environ, **root})
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(command)}\n{result.stdout}")
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def run_mirrored(program, replicas, flags, folder, timeout=300):
    metrics = os.path.join(folder, "mirrored.json")
    command = [program, "--strategy", "mirrored", "--devices", "cpu:0", "--replicas", str(replicas),
               "--metrics-json", metrics] + flags
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(command)}\n{result.stdout}")
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def compare(name, reference, replicas, got, strategy="multi_worker_mirrored"):
    """Prints a line; 1 when they differ, or `got` is not of so many replicas of `strategy`."""
    differing = [key for key in COMPARED if reference[key] != got[key]]
    if got["num_replicas"] != replicas or got["strategy"] != strategy:
        differing.append(f"{got['num_replicas']} replicas of {got['strategy']}")
    print(f"  {'same' if not differing else 'DIFFERENT':9} {got['weights_hash']}  {name}"
          f"{': ' if differing else ''}{', '.join(differing)}", flush=True)
    return 1 if differing else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tutti")
    parser.add_argument("--mpirun")
    parser.add_argument("--keras")
    arguments = parser.parse_args()
    launchers = []
    if arguments.tutti:
        launchers.append(("tutti run", 2, [arguments.tutti, "run", "-n", "2", "--"]))
    if arguments.mpirun:
        for count in (2, 4):
            launchers.append((f"mpirun, {count} processes", count,
                              [arguments.mpirun, "-n", str(count), "--oversubscribe"]))
    flags = FLAGS + ["--steps", str(arguments.steps)]
    references, failures = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, replicas, devices, more in RUNS:
            if replicas not in references:
                references[replicas] = run_mirrored(arguments.program, replicas, flags, folder)
            got = run_workers(arguments.program, devices, flags + more, folder)
            failures += compare(name, references[replicas], replicas, got)
        for name, replicas, devices, more in SHARDED:
            got = run_workers(arguments.program, devices, flags + more, folder, strategy="fully_sharded")
            failures += compare(name, references[replicas], replicas, got, "fully_sharded")
        if arguments.keras:
            # compile and fit: no example is read twice, and one worker alone prints.
            few = ["--batch-size", "250", "--seed", "1", "--epochs", "1", "--steps", "20",
                   "--test-examples", "1003"]  # a ragged last batch
            reference = run_mirrored(arguments.keras, 2, few, folder)
            got = run_workers(arguments.keras, ["cpu:0", "cpu:0"], few, folder)
            failures += compare("2 processes, compile and fit", reference, 2, got)
            sharded = run_workers(arguments.keras, ["cpu:0", "cpu:0"], few + ALL_CUT, folder, strategy="fully_sharded")
            failures += compare("2 processes, compile and fit, fully sharded", reference, 2, sharded, "fully_sharded")
            for each in (got, sharded):
                if each["accuracy"] != reference["accuracy"]:
                    failures += 1
                    print(f"  test accuracy {each['accuracy']}, expected {reference['accuracy']}")
        for name, count, launcher in launchers:
            got = run_launched(launcher, arguments.program, flags, folder)
            failures += compare(name, references[count], count, got)
            got = run_launched(launcher, arguments.program, flags + ALL_CUT, folder, "fully_sharded")
            failures += compare(f"{name}, fully sharded", references[count], count, got, "fully_sharded")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
