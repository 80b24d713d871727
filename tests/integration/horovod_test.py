#!/usr/bin/env python3
# Runs a Horovod-style program with each launcher; its weights must equal those of MirroredStrategy.
# SPDX-License-Identifier: Apache-2.0
"""Usage: horovod_test.py PROGRAM MIRRORED_PROGRAM LAUNCHER...

LAUNCHER starts processes with -n N (`tutti run`, `mpirun --oversubscribe`).
"""
import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, end_with, output_of, require  # noqa: E402

BATCH, STEPS = 16, 6


def main():
    program, mirrored, *launcher = sys.argv[1:]
    for ranks in (2, 4):
        reference = re.findall(r"weights ([0-9a-f]{32})", output_of(mirrored, str(ranks), str(BATCH), str(STEPS)))
        text = output_of(*launcher, "-n", str(ranks), *(["--"] if launcher[-1] == "run" else []), program,
                         "--batch-size", str(BATCH), "--steps", str(STEPS * ranks), environment=MPI)
        hashes = dict(re.findall(rf"rank (\d) of {ranks}, weights ([0-9a-f]{{32}})", text))
        require(len(reference) == 1 and sorted(hashes) == [str(rank) for rank in range(ranks)], "expected one hash from each rank", text)
        require(set(hashes.values()) == set(reference), f"{ranks} ranks: expected weights {reference[0]}, got {sorted(set(hashes.values()))}", text)
        require(len(re.findall(r"Step #0\tLoss: 2\.", text)) == 1, "expected the first loss, near ln(10), from rank 0 alone", text)
        print(f"  same {reference[0]} with {ranks} ranks", flush=True)


if __name__ == "__main__":
    end_with(main)
