#!/usr/bin/env python3
# Run that is stopped and resumed with other numbers of processes; the bits must equal an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: elastic_test.py PROGRAM [--steps N]

The number of replicas stays 4. Three times N steps with 4, 2 and 3 processes, the last two with shards of variables, then with one.
"""
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import ALL_CUT, FLAGS, end_with, parse, require_same, run_mirrored, run_workers  # noqa: E402

REPLICAS = 4
PARTS = [(4, "multi_worker_mirrored"), (2, "fully_sharded"), (3, "fully_sharded")]


def main():
    arguments = parse(__doc__, "program", steps=6)
    program, steps = arguments.program, arguments.steps
    own = FLAGS + ["--replicas", str(REPLICAS)]
    with tempfile.TemporaryDirectory() as folder:
        total = FLAGS + ["--steps", str(4 * steps)]
        calm = run_mirrored(program, REPLICAS, total, folder)
        saved = ["--checkpoint-dir", os.path.join(folder, "run")]
        for part, (processes, strategy) in enumerate(PARTS, start=1):
            flags = own + saved + ["--steps", str(part * steps)] + (["--resume"] if part > 1 else [])
            run_workers(program, ["cpu:0"] * processes, flags + ALL_CUT, folder, strategy)
        require_same("4 -> 2 -> 3 -> 1 processes", calm, run_mirrored(program, REPLICAS, total + saved + ["--resume"], folder))


if __name__ == "__main__":
    end_with(main)
