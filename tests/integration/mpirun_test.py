#!/usr/bin/env python3
# Ranks under mpirun that are stopped, killed or asked to end: they are named, and nobody waits for ever.
# SPDX-License-Identifier: Apache-2.0
"""Usage: mpirun_test.py PROGRAM MPIRUN

PROGRAM is an example with the flags of examples/common. mpirun ends a job of which a process dies, but does not see that one is
stopped: the workers find that out themselves (docs/mpi.md), by a control server that rank 0 hosts. Times are printed; the goals
(0.25 s and 2.5 s) hold on a quiet machine.
"""
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 3
STOPPED_ON_REQUEST = 75
LONGEST = 120  # seconds; the deadline of a collective is minutes
FLAGS = ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--batch-size", "60", "--test-examples", "500",
         "--seed", "1", "--epochs", "1000", "--steps", "1000000"]


class Job:
    """An mpirun whose lines are read as they come."""

    def __init__(self, program, mpirun, folder):
        self.checkpoints = os.path.join(folder, "checkpoints")
        command = [mpirun, "-n", str(RANKS), "--oversubscribe", program, *FLAGS, "--checkpoint-dir", self.checkpoints]
        self.program, self.lines = program, []
        self.process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def text(self):
        return "".join(line for _, line in self.lines)

    def fail(self, what):
        self.process.kill()
        sys.exit(f"FAILED: {what}\n{self.text()[-6000:]}")

    def wait_for(self, pattern):
        deadline = time.monotonic() + LONGEST
        while True:
            found = re.search(pattern, self.text())
            if found:
                return found
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.fail(f"no line has {pattern}")
            time.sleep(0.01)

    def pid_of(self, rank):
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", encoding="utf-8", errors="replace") as environment:
                    variables = environment.read().split("\0")
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == self.process.pid and f"OMPI_COMM_WORLD_RANK={rank}" in variables:
                return int(name)
        return self.fail(f"mpirun has no child of rank {rank}")

    def send(self, rank, number):
        """When it was sent. The job trains by then."""
        self.wait_for(r"step +\d+|epoch 1/")
        time.sleep(0.5)
        pid, now = self.pid_of(rank), time.monotonic()
        os.kill(pid, number)
        return now

    def wait_for_end(self):
        try:
            code = self.process.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            self.fail("the job does not end")
        self.reader.join(timeout=10)
        return code

    def seconds_until(self, pattern, begin):
        for when, line in self.lines:
            if when >= begin and re.search(pattern, line):
                return when - begin
        return self.fail(f"no line has {pattern}")


def check_stopped(job):
    begin = job.send(1, signal.SIGSTOP)
    code = job.wait_for_end()
    if code == 0:
        job.fail("a job with a stopped rank ended with 0")
    named = job.seconds_until(r"worker 1\b.*is stopped", begin)
    if "error: " not in job.text() or re.search(r"worker [02] \(pid \d+\) is stopped", job.text()):
        job.fail("expected errors that name worker 1 alone")
    print(f"  stopped: named after {named:.2f} s, the job ended after {time.monotonic() - begin:.2f} s", flush=True)


def check_killed(job):
    begin = job.send(1, signal.SIGKILL)
    code = job.wait_for_end()
    if code == 0:
        job.fail("a job with a killed rank ended with 0")
    named = job.seconds_until(r"worker 1\b.*died|rank 1 .*exited on signal 9", begin)
    print(f"  killed: named after {named:.2f} s, the job ended after {time.monotonic() - begin:.2f} s", flush=True)


def check_asked(job):
    """One rank gets SIGTERM: all stop after one step, which is saved before anybody ends."""
    begin = job.send(2, signal.SIGTERM)
    code = job.wait_for_end()
    saved = glob.glob(os.path.join(job.checkpoints, "step_*", "manifest.json"))
    if code != STOPPED_ON_REQUEST or not saved:
        job.fail(f"expected code {STOPPED_ON_REQUEST} and a checkpoint, got {code} and {saved}")
    print(f"  asked to stop: saved and ended after {time.monotonic() - begin:.2f} s", flush=True)


def main():
    os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_mpi_yield_when_idle": "0", "OMPI_MCA_btl_base_warn_component_unused": "0",
                       "ASAN_OPTIONS": "detect_leaks=0"})
    for check in (check_stopped, check_killed, check_asked):
        with tempfile.TemporaryDirectory() as folder:
            check(Job(sys.argv[1], sys.argv[2], folder))


if __name__ == "__main__":
    main()
