#!/usr/bin/env python3
# Runs one training program with parameter servers as processes: the results are bit-identical to
# those of one process, and errors name dead servers.
# SPDX-License-Identifier: Apache-2.0
"""Usage: parameter_server_test.py PROGRAM TUTTI [--steps N] [--keras PROGRAM] [--modes]

PROGRAM is an example with the flags of examples/common. Each run must report the losses_hex, weights_hash and
slots_hash of MirroredStrategy with as many replicas (docs/determinism.md). With --modes, PROGRAM is linear_regression, which
runs with two workers and a server in each update mode and prints losses and steps per second.
"""
import os
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import FLAGS, Tasks, end_with, load, new_metrics_file, parse, require, require_same, run_launched, run_mirrored  # noqa: E402

OWN = ["--strategy", "parameter_server", "--devices", "cpu:0"]
# Name, number of replicas, flags of the launcher, and flags of the program.
LAUNCHED = [
    ("1 worker, 1 server", 1, ["--workers", "1", "--ps", "1"], []),
    ("2 workers, 2 servers", 2, ["--workers", "2", "--ps", "2"], []),
    ("2 workers, 2 servers, a chief", 2, ["--workers", "2", "--ps", "2", "--chief"], []),
    ("2 workers x 2 devices, 1 server", 4, ["--workers", "2", "--ps", "1"], ["--devices", "cpu:0-1"]),
]


def run_by_hand(program, flags, folder):
    """Returns the metrics of worker 0 of 2 workers and 2 servers, each of which must end by itself with code 0."""
    metrics = new_metrics_file(folder)
    Tasks([program, *OWN, *flags, "--metrics-json", metrics], {"worker": 2, "ps": 2}).finish()
    return load(metrics)


def check_dead_server(program):
    """Kills a server: the workers end with an error that names it."""
    tasks = Tasks([program, *OWN, *FLAGS, "--steps", "100000"], {"worker": 2, "ps": 2})
    time.sleep(3)
    begin = tasks["ps", 1].send(signal.SIGKILL)
    codes = [tasks["worker", w].finish() for w in range(2)]
    print(f"  a dead server: the workers ended after {time.monotonic() - begin:.1f} s", flush=True)
    tasks.kill()
    require(0 not in codes and any("ps 1" in tasks["worker", w].text() for w in range(2)),
            f"workers ended with {codes}; expected an error that names ps 1", tasks.text())


def compare_modes(program, tutti):
    epochs, rows, batch = 12, 1024, 64
    steps, hashes = epochs * rows // batch, {}
    flags = ["--batch-size", str(batch), "--epochs", str(epochs), "--update-mode"]
    print(f"  {'mode':14} {'steps':>6} {'steps/s':>8}  loss of step 1, {steps // 2}, {steps}: of both workers' rows (sync), or of worker 0's")
    for mode in ("sync", "sync_replicas", "async"):
        with tempfile.TemporaryDirectory() as folder:
            metrics = run_launched([tutti, "run", "--workers", "2", "--ps", "1", "--"], program, [*flags, mode], folder, "parameter_server")
        losses, rate = metrics["losses"], metrics["examples_per_second"] / batch
        print(f"  {mode:14} {metrics['steps']:6} {rate:8.1f}  {losses[0]:.4f}, {losses[steps // 2 - 1]:.6f}, {losses[-1]:.6f}")
        require(metrics["steps"] == steps and len(losses) == steps and rate > 0, f"{mode}: expected {steps} steps, their losses and a rate", metrics)
        require(losses[-1] < 0.01, f"{mode}: expected a last loss below 0.01, got {losses[-1]}")  # 7.2 before training
        hashes[mode] = metrics["weights_hash"]
    # Both synchronous modes give equal weights. In async mode, the weights depend on timing.
    require(hashes["sync"] == hashes["sync_replicas"], f"expected equal weights in both synchronous modes, got {hashes}")


def main():
    arguments = parse(__doc__, "program", "tutti", steps=10, keras=None, modes=False)
    if arguments.modes:
        return compare_modes(arguments.program, arguments.tutti)
    steps = ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as folder:
        references = {n: run_mirrored(arguments.program, n, FLAGS + steps, folder) for n in (1, 2, 4)}
        for name, replicas, launcher, flags in LAUNCHED:
            got = run_launched([arguments.tutti, "run", *launcher, "--"], arguments.program, flags + FLAGS + steps, folder, "parameter_server")
            require_same(name, references[replicas], got, "parameter_server", replicas)
        require_same("by hand", references[2], run_by_hand(arguments.program, FLAGS + steps, folder), "parameter_server", 2)
        if arguments.keras:
            keras = ["--seed", "1", "--epochs", "1", "--test-examples", "1003", *steps]
            reference = run_mirrored(arguments.keras, 2, keras, folder)
            require_same("fit", reference, run_by_hand(arguments.keras, keras, folder), "parameter_server", 2)
        check_dead_server(arguments.program)


if __name__ == "__main__":
    end_with(main)
