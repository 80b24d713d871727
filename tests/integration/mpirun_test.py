#!/usr/bin/env python3
# Stops, kills or signals ranks under mpirun: the errors name these ranks, and no rank waits
# indefinitely.
# SPDX-License-Identifier: Apache-2.0
"""Usage: mpirun_test.py PROGRAM MPIRUN

PROGRAM is an example with the flags of examples/common. mpirun ends a job if a process dies, but not if it is stopped: the workers detect
this with rank 0's control server (docs/mpi.md). Times are printed but do not fail the test (goals: 0.25 s and 2.5 s).
"""
import glob
import os
import re
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, STOPPED_ON_REQUEST, Job, end_with, require  # noqa: E402

FLAGS = ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--batch-size", "60", "--train-examples", "6000", "--test-examples", "500",
         "--seed", "1", "--epochs", "1000", "--steps", "1000000"]
# Rank, signal, and a pattern that names the rank. A rank that is asked to stop makes all ranks stop
# after the same step, which is saved before any rank ends.
CASES = [(1, signal.SIGSTOP, r"worker 1\b.*is stopped"),
         (1, signal.SIGKILL, r"worker 1\b.*died|rank 1 .*exited on signal 9"),
         (2, signal.SIGTERM, None)]


def check(program, mpirun, folder, rank, number, named):
    job = Job([mpirun, "-n", "3", "--oversubscribe", program, *FLAGS, "--checkpoint-dir", folder], MPI)
    job.wait_for_line("epoch 2/")  # all ranks have made steps
    begin, name = job.send(number, ("worker", rank)), signal.Signals(number).name
    code, text = job.finish(), job.text()
    if named is None:
        saved = glob.glob(os.path.join(folder, "step_*", "model.safetensors.index.json"))
        require(code == STOPPED_ON_REQUEST and saved, f"expected code {STOPPED_ON_REQUEST} and a checkpoint, got {code} and {saved}", text)
        print(f"  {name}: saved and ended after {time.monotonic() - begin:.2f} s", flush=True)
        return
    line = job.find_line(named, begin)
    require(code != 0 and line, f"{name}: the job ended with {code}; expected an error that names rank {rank}", text)
    if number == signal.SIGSTOP:
        require("error: " in text and not re.search(r"worker [02] \(pid \d+\) is stopped", text), "expected errors that name worker 1 alone", text)
    print(f"  {name}: named after {line.time - begin:.2f} s, the job ended after {time.monotonic() - begin:.2f} s", flush=True)


def main():
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], sys.argv[2], folder, *case)


if __name__ == "__main__":
    end_with(main)
