#!/usr/bin/env python3
# The program in Horovod's style, as processes of each launcher, has the weights of MirroredStrategy.
# SPDX-License-Identifier: Apache-2.0
"""Usage: horovod_test.py PROGRAM MIRRORED_PROGRAM LAUNCHER...

LAUNCHER starts processes with -n N (`tutti run`, `mpirun --oversubscribe`).
"""
import os
import re
import subprocess
import sys

BATCH, STEPS = 16, 6
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "0"}


def output_of(*command):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                            env={**os.environ, **ROOT})
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(command)}\n{result.stdout}")
    return result.stdout


def main():
    program, mirrored, *launcher = sys.argv[1:]
    for ranks in (2, 4):
        reference = re.findall(r"weights ([0-9a-f]{32})", output_of(mirrored, str(ranks), str(BATCH), str(STEPS)))
        text = output_of(*launcher, "-n", str(ranks), *(["--"] if launcher[-1] == "run" else []), program,
                         "--batch-size", str(BATCH), "--steps", str(STEPS * ranks))
        hashes = dict(re.findall(rf"rank (\d) of {ranks}, weights ([0-9a-f]{{32}})", text))
        if len(reference) != 1 or sorted(hashes) != [str(rank) for rank in range(ranks)]:
            sys.exit(f"FAILED: expected one hash of each rank\n{reference}\n{text}")
        if set(hashes.values()) != set(reference):
            sys.exit(f"FAILED: {ranks} ranks, expected {reference[0]}\n{text}")
        if len(re.findall(r"Step #0\tLoss: 2\.", text)) != 1:
            sys.exit(f"FAILED: expected the first loss, near ln(10), from rank 0 alone\n{text}")
        print(f"  same {reference[0]} with {ranks} ranks", flush=True)


if __name__ == "__main__":
    main()
