#!/usr/bin/env python3
# Runs one training program as several processes: the results are bit-identical to those of one
# process, however the processes are connected.
# SPDX-License-Identifier: Apache-2.0
"""Usage: multi_worker_test.py PROGRAM [--steps N] [--tutti TUTTI] [--mpirun MPIRUN] [--keras PROGRAM] [--elastic]

PROGRAM is an example with the flags of examples/common. Each run must report the losses_hex, weights_hash and
slots_hash of MirroredStrategy with as many replicas (docs/determinism.md). With --elastic, a run with 4 replicas is stopped
and resumed with different numbers of processes: N steps each with 4, 2 and 3 processes, then with one.
"""
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import ALL_CUT, FLAGS, end_with, parse, require, require_same, run_launched, run_mirrored, run_workers  # noqa: E402

MULTI, SHARDED = "multi_worker_mirrored", "fully_sharded"
# Name, strategy, number of replicas, devices of each worker, and additional flags.
RUNS = [
    ("2 processes", MULTI, 2, ["cpu:0", "cpu:0"], []),
    ("2 processes x 2 devices", MULTI, 4, ["cpu:0-1", "cpu:0-1"], []),
    ("4 processes", MULTI, 4, ["cpu:0"] * 4, []),
    ("3 processes, 4 replicas", MULTI, 4, ["cpu:0"] * 3, ["--replicas", "4"]),
    ("2 processes, tcp", MULTI, 2, ["cpu:0", "cpu:0"], ["--transport", "tcp"]),
    ("2 processes, small packs", MULTI, 2, ["cpu:0", "cpu:0"], ["--bytes-per-pack", "4096"]),
    ("2 processes, hierarchical_copy", MULTI, 2, ["cpu:0", "cpu:0"], ["--cross-device-ops", "hierarchical_copy"]),
    ("2 processes, fully sharded", SHARDED, 2, ["cpu:0", "cpu:0"], ALL_CUT),
    ("2 processes x 2 devices, fully sharded", SHARDED, 4, ["cpu:0-1", "cpu:0-1"], ALL_CUT),
    ("4 processes, fully sharded, stage 2", SHARDED, 4, ["cpu:0"] * 4, ALL_CUT + ["--stage", "2"]),
    ("3 processes, 4 replicas, fully sharded", SHARDED, 4, ["cpu:0"] * 3, ALL_CUT + ["--replicas", "4"]),
    ("2 processes, tcp, fully sharded, stage 1", SHARDED, 2, ["cpu:0", "cpu:0"], ALL_CUT + ["--stage", "1", "--transport", "tcp"]),
]
ELASTIC_PARTS = [(4, MULTI), (2, SHARDED), (3, SHARDED)]


def run_elastic(program, steps):
    own, total = FLAGS + ["--replicas", "4"], FLAGS + ["--steps", str(4 * steps)]
    with tempfile.TemporaryDirectory() as folder:
        calm = run_mirrored(program, 4, total, folder)
        saved = ["--checkpoint-dir", os.path.join(folder, "run")]
        for part, (processes, strategy) in enumerate(ELASTIC_PARTS, start=1):
            flags = own + saved + ["--steps", str(part * steps)] + (["--resume"] if part > 1 else [])
            run_workers(program, ["cpu:0"] * processes, flags + ALL_CUT, folder, strategy)
        require_same("4 -> 2 -> 3 -> 1 processes", calm, run_mirrored(program, 4, total + saved + ["--resume"], folder))


def main():
    arguments = parse(__doc__, "program", steps=10, tutti=None, mpirun=None, keras=None, elastic=False)
    if arguments.elastic:
        return run_elastic(arguments.program, arguments.steps)
    launchers = [("tutti run", 2, [arguments.tutti, "run", "-n", "2", "--"])] if arguments.tutti else []
    launchers += [(f"mpirun, {n} processes", n, [arguments.mpirun, "-n", str(n), "--oversubscribe"]) for n in (2, 4) if arguments.mpirun]
    flags = FLAGS + ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as folder:
        references = {replicas: run_mirrored(arguments.program, replicas, flags, folder) for replicas in (2, 4)}
        for name, strategy, replicas, devices, more in RUNS:
            got = run_workers(arguments.program, devices, flags + more, folder, strategy)
            require_same(name, references[replicas], got, strategy, replicas)
        if arguments.keras:
            # Uses compile and fit; the last batch of test examples is ragged.
            few = ["--batch-size", "250", "--seed", "1", "--epochs", "1", "--steps", "20", "--test-examples", "1003"]
            reference = run_mirrored(arguments.keras, 2, few, folder)
            for strategy, more in ((MULTI, []), (SHARDED, ALL_CUT)):
                got = run_workers(arguments.keras, ["cpu:0", "cpu:0"], few + more, folder, strategy)
                require_same(f"2 processes, compile and fit, {strategy}", reference, got, strategy, 2)
                require(got["accuracy"] == reference["accuracy"], f"test accuracy {got['accuracy']}, expected {reference['accuracy']}")
        for name, count, launcher in launchers:
            for strategy, more in ((MULTI, []), (SHARDED, ALL_CUT)):
                got = run_launched(launcher, arguments.program, flags + more, folder, strategy)
                require_same(f"{name}, {strategy}", references[count], got, strategy, count)


if __name__ == "__main__":
    end_with(main)
