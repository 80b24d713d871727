#!/usr/bin/env python3
# Parameter servers without a coordinator: tasks that are killed or stopped, in every mode, with restarts and without.
# SPDX-License-Identifier: Apache-2.0
"""Usage: lost_tasks_test.py TRAINER LOOP TUTTI [--full]

TRAINER is examples/between_graph_trainer, LOOP examples/fashion_mnist_custom_loop. Tries the table of
docs/parameter_server.md, "Without a coordinator"; without --full one fault of each kind and outcome.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

LONGEST = 200  # seconds until a job counts as hanging
MODES = ("sync", "async", "ssp", "sync_replicas")
STEPS = 400


class Job:
    """A launched job whose lines are read as they come."""

    def __init__(self, tutti, flags, program):
        # The launcher's grace must not be what ends a task that waits.
        command = [tutti, "run", "--workers", "2", "--ps", "2", "--grace", str(10 * LONGEST), *flags, "--", *program]
        self.process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.lines = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def text(self):
        return "".join(self.lines)

    def wait_for(self, is_so, what):
        deadline = time.monotonic() + LONGEST
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.fail(what)
            time.sleep(0.02)

    def pid_of(self, job, index):
        """None: it has ended."""
        for path in os.listdir("/proc"):
            try:
                with open(f"/proc/{path}/stat", encoding="utf-8") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{path}/environ", encoding="utf-8") as file:
                    variables = dict(each.split("=", 1) for each in file.read().split("\0") if "=" in each)
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and "TF_CONFIG" in variables:
                if json.loads(variables["TF_CONFIG"])["task"] == {"type": job, "index": index}:
                    return int(path)
        return None

    def finish(self):
        try:
            code = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.fail("the job does not end")
        self.reader.join(10)
        return code

    def fail(self, what):
        self.process.kill()
        self.reader.join(10)
        sys.exit(f"FAILED: {what}\n{self.text()}")


def start(arguments, mode, restarts, steps, folder):
    """A job whose workers have both made steps; None where it was over before that."""
    if restarts:
        program = [arguments.trainer, "--update-mode", mode, "--train_steps", str(steps)]
        begun = ("worker 0   step", "worker 1   step")
    else:
        # Its workers take SIGTERM for a wish, and end after the step that they are in.
        program = [arguments.loop, "--strategy", "parameter_server", "--update-mode", mode, "--devices", "cpu:0",
                   "--epochs", "1000", "--train-examples", "1000", "--test-examples", "100", "--checkpoint-dir", folder]
        begun = ("epoch 2/",)
    job = Job(arguments.tutti, ["--max-restarts", str(restarts)], program)
    job.wait_for(lambda: all(each in job.text() for each in begun) or "result" in job.text(), "training does not begin")
    return None if "result" in job.text() else job


def hit(arguments, mode, task, number, restarts):
    """The job, and its steps, after the signal was sent. Workers that do not wait may be done too soon: then again."""
    steps = STEPS
    while True:
        with tempfile.TemporaryDirectory() as folder:
            job = start(arguments, mode, restarts, steps, folder)
            if job:
                pid = job.pid_of(*task)
                if pid:
                    os.kill(pid, number)
                    if "result" not in job.text():
                        return job, steps, job.finish()
                job.process.kill()
        steps *= 4


def check(arguments, mode, task, number, restarts):
    """It ends with a name, or goes on, by itself."""
    begin = time.monotonic()
    job, steps, code = hit(arguments, mode, task, number, restarts)
    text, (job_name, index) = job.text(), task
    what = f"{mode}, {job_name} {index}, {signal.Signals(number).name}, {restarts} restarts"
    again = set(re.findall(r"(\w+-\d): .*; is started again", text))
    victim = f"{job_name}-{index}"
    if number == signal.SIGSTOP and not re.search(rf"{job_name} {index} \(.*\) is stopped: state T", text):
        job.fail(f"{what}: nobody said who is stopped")
    if not restarts:
        # Others may end by the loss of a stopped one before the launcher has killed it.
        is_named = number == signal.SIGSTOP or f"{victim} failed first: killed by signal 9" in text
        if code == 0 or not is_named or again:
            job.fail(f"{what}: the job ended with {code}; expected it to end by the loss of {victim}")
    else:
        goes_on = job_name == "worker" and mode in ("async", "ssp")
        expected = {victim} if goes_on else {"worker-0", "worker-1", "ps-0", "ps-1"}
        if code != 0 or again != expected:
            job.fail(f"{what}: the job ended with {code}, started again were {sorted(again)}; expected 0, {sorted(expected)}")
        if not goes_on and not re.search(rf"\[(?!{victim}).*{job_name} {index} \(.*(died|is stopped)", text):
            job.fail(f"{what}: no other task named {job_name} {index}")
        step = re.search(r"result +global step (\d+)", text)
        if not step or int(step[1]) < steps:
            job.fail(f"{what}: worker 0 did not train to the end")
    print(f"  {what}: {time.monotonic() - begin:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer")
    parser.add_argument("loop")
    parser.add_argument("tutti")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="MODE,JOB,SIGNAL,RESTARTS")
    arguments = parser.parse_args()
    tasks = {"ps": ("ps", 1), "worker": ("worker", 1)}
    cases = [(mode, task, number, restarts) for mode in MODES for task in tasks.values()
             for number in (signal.SIGKILL, signal.SIGSTOP) for restarts in (0, 3)]
    short = [("sync", tasks["worker"], signal.SIGKILL, 3), ("async", tasks["ps"], signal.SIGKILL, 3),
             ("ssp", tasks["worker"], signal.SIGSTOP, 3), ("sync_replicas", tasks["ps"], signal.SIGSTOP, 3),
             ("sync_replicas", tasks["worker"], signal.SIGKILL, 0), ("async", tasks["worker"], signal.SIGSTOP, 0)]
    if arguments.only:
        mode, job, name, restarts = arguments.only.split(",")
        cases = [(mode, tasks[job], signal.Signals[name], int(restarts))]
    for case in cases if arguments.full or arguments.only else short:
        check(arguments, *case)
    print("all as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
