#!/usr/bin/env python3
# One program with two workers and a server, synchronous and asynchronous by a flag: losses and steps per second of each mode.
# SPDX-License-Identifier: Apache-2.0
"""Usage: update_modes_test.py LINEAR_REGRESSION TUTTI"""
import json
import os
import subprocess
import sys
import tempfile

MODES = ("sync", "sync_replicas", "async", "ssp")
EPOCHS, ROWS, BATCH = 12, 1024, 64
STEPS = EPOCHS * ROWS // BATCH


def metrics_of(program, tutti, mode):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "metrics.json")
        command = [tutti, "run", "--workers", "2", "--ps", "1", "--", program, "--strategy", "parameter_server", "--devices", "cpu:0",
                   "--update-mode", mode, "--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--metrics-json", path]
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        if result.returncode != 0:
            sys.exit(f"FAILED: {mode}: exit code {result.returncode}\n{result.stdout}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def main():
    found = {mode: metrics_of(*sys.argv[1:3], mode) for mode in MODES}
    print(f"  {'mode':14} {'steps':>6} {'steps/s':>8}  loss of step 1, {STEPS // 2}, {STEPS}: of both workers' rows (sync), or of worker 0's")
    for mode, metrics in found.items():
        losses, rate = metrics["losses"], metrics["examples_per_second"] / BATCH
        print(f"  {mode:14} {metrics['steps']:6} {rate:8.1f}  {losses[0]:.4f}, {losses[STEPS // 2 - 1]:.6f}, {losses[-1]:.6f}")
        if metrics["steps"] != STEPS or len(losses) != STEPS or not rate > 0:
            sys.exit(f"FAILED: {mode}: expected {STEPS} steps with their losses, and a rate: {metrics}")
        if not losses[-1] < 0.01:  # of 7.2 before the first step of anybody
            sys.exit(f"FAILED: {mode}: it has not learnt: {losses[-1]} at last")
    # Synchronous steps give the same weights, however they are made so. Those of the other modes depend on timing.
    hashes = {mode: metrics["weights_hash"] for mode, metrics in found.items()}
    if hashes["sync"] != hashes["sync_replicas"]:
        sys.exit(f"FAILED: expected the same weights of the synchronous modes: {hashes}")


if __name__ == "__main__":
    main()
