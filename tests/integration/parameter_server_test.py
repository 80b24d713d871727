#!/usr/bin/env python3
# One training program with parameter servers as processes: the bits of one process; dead servers have a name.
# SPDX-License-Identifier: Apache-2.0
"""Usage: parameter_server_test.py PROGRAM TUTTI [--steps N] [--keras PROGRAM]

PROGRAM is an example with the flags of examples/common. Each run must report the losses_hex, weights_hash and
slots_hash of MirroredStrategy with as many replicas (docs/determinism.md).
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import multi_worker_test
from multi_worker_test import FLAGS, free_ports, run_mirrored

# Name, workers, servers, further arguments of the launcher, flags of the program.
LAUNCHED = [
    ("1 worker, 1 server", 1, 1, [], []),
    ("2 workers, 2 servers", 2, 2, [], []),
    ("2 workers, 2 servers, a chief", 2, 2, ["--chief"], []),
    ("2 workers x 2 devices, 1 server", 2, 1, [], ["--devices", "cpu:0-1"]),
]


def compare(name, reference, replicas, got):
    return multi_worker_test.compare(name, reference, replicas, got, strategy="parameter_server")


def run_launched(arguments, case, folder):
    _, workers, servers, launcher, flags = case
    metrics = os.path.join(folder, "launched.json")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = [arguments.tutti, "run", "--workers", str(workers), "--ps", str(servers), *launcher, "--",
               arguments.program, "--strategy", "parameter_server", "--devices", "cpu:0", "--metrics-json", metrics,
               *flags, *FLAGS, "--steps", str(arguments.steps)]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(command)}\n{result.stdout}")
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def start_by_hand(program, flags, workers, servers):
    """One process per task, each with TF_CONFIG. {(job, index): process}"""
    ports = free_ports(workers + servers)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
    processes = {}
    for job, tasks in cluster.items():
        for index in range(len(tasks)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            processes[job, index] = subprocess.Popen(
                [program, "--strategy", "parameter_server", "--devices", "cpu:0", *flags], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "TF_CONFIG": json.dumps(config)})
    return processes


def run_by_hand(program, flags, folder):
    """2 workers and 2 servers; every process must end with 0 by itself. Returns worker 0's metrics."""
    metrics = os.path.join(folder, "by_hand.json")
    processes = start_by_hand(program, [*flags, "--metrics-json", metrics], 2, 2)
    outputs = {task: process.communicate(timeout=300)[0] for task, process in processes.items()}
    failed = {task: process.returncode for task, process in processes.items() if process.returncode != 0}
    if failed:
        sys.exit(f"FAILED: {failed}\n" + "\n".join(f"--- {task}\n{text}" for task, text in outputs.items()))
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def check_dead_server(program):
    """A server that is killed ends the workers with an error that names it."""
    processes = start_by_hand(program, [*FLAGS, "--steps", "100000"], 2, 2)
    time.sleep(3)
    processes["ps", 1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    texts = [processes["worker", w].communicate(timeout=600)[0] for w in range(2)]
    seconds = time.monotonic() - begin
    codes = [processes["worker", w].returncode for w in range(2)]
    for server in range(2):
        processes["ps", server].kill()
        processes["ps", server].communicate()
    if 0 in codes or not any("ps 1" in text for text in texts):
        sys.exit(f"FAILED: workers ended with {codes}; expected an error that names ps 1\n" + "\n---\n".join(texts))
    print(f"  a dead server: the workers ended after {seconds:.1f} s, naming ps 1", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--keras")
    arguments = parser.parse_args()
    steps = ["--steps", str(arguments.steps)]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        references = {n: run_mirrored(arguments.program, n, FLAGS + steps, folder) for n in (1, 2, 4)}
        for case in LAUNCHED:
            replicas = case[1] * (2 if "--devices" in case[4] else 1)
            failures += compare(case[0], references[replicas], replicas, run_launched(arguments, case, folder))
        failures += compare("by hand", references[2], 2, run_by_hand(arguments.program, FLAGS + steps, folder))
        if arguments.keras:
            keras = ["--seed", "1", "--epochs", "1", "--test-examples", "1003", *steps]
            reference = run_mirrored(arguments.keras, 2, keras, folder)
            failures += compare("fit", reference, 2, run_by_hand(arguments.keras, keras, folder))
        check_dead_server(arguments.program)
    print("all the same" if failures == 0 else f"{failures} runs differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
