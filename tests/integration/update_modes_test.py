#!/usr/bin/env python3
# Runs one program with two workers and a server, in each update mode by a flag; prints losses and steps per second.
# SPDX-License-Identifier: Apache-2.0
"""Usage: update_modes_test.py LINEAR_REGRESSION TUTTI"""
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import end_with, require, run_launched  # noqa: E402

MODES = ("sync", "sync_replicas", "async")
EPOCHS, ROWS, BATCH = 12, 1024, 64
STEPS = EPOCHS * ROWS // BATCH


def main():
    program, tutti = sys.argv[1:3]
    flags, hashes = ["--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--update-mode"], {}
    print(f"  {'mode':14} {'steps':>6} {'steps/s':>8}  loss of step 1, {STEPS // 2}, {STEPS}: of both workers' rows (sync), or of worker 0's")
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            metrics = run_launched([tutti, "run", "--workers", "2", "--ps", "1", "--"], program, [*flags, mode], folder, "parameter_server")
        losses, rate = metrics["losses"], metrics["examples_per_second"] / BATCH
        print(f"  {mode:14} {metrics['steps']:6} {rate:8.1f}  {losses[0]:.4f}, {losses[STEPS // 2 - 1]:.6f}, {losses[-1]:.6f}")
        require(metrics["steps"] == STEPS and len(losses) == STEPS and rate > 0, f"{mode}: expected {STEPS} steps, their losses and a rate", metrics)
        require(losses[-1] < 0.01, f"{mode}: it has not learnt: {losses[-1]} at last")  # before training it is 7.2
        hashes[mode] = metrics["weights_hash"]
    # Both synchronous modes give equal weights. Those of the other modes depend on timing.
    require(hashes["sync"] == hashes["sync_replicas"], f"expected the same weights of the synchronous modes: {hashes}")


if __name__ == "__main__":
    end_with(main)
