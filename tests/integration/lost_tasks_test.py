#!/usr/bin/env python3
# Kills and stops tasks of jobs with parameter servers and no coordinator, in every mode, with and
# without restarts.
# SPDX-License-Identifier: Apache-2.0
"""Usage: lost_tasks_test.py TRAINER LOOP TUTTI [--full] [--only MODE,JOB,SIGNAL,RESTARTS]

TRAINER is examples/between_graph_trainer, LOOP examples/fashion_mnist_custom_loop. Tests the table of
docs/parameter_server.md, "Without a coordinator"; without --full, only one fault of each kind and outcome.
"""
import os
import re
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import LONGEST, Job, end_with, parse, require, say  # noqa: E402

MODES = ("sync", "async", "sync_replicas")
STEPS = 400
PS, WORKER = ("ps", 1), ("worker", 1)
SHORT = [("sync", WORKER, signal.SIGKILL, 3), ("async", PS, signal.SIGKILL, 3), ("async", WORKER, signal.SIGSTOP, 3),
         ("sync_replicas", PS, signal.SIGSTOP, 3), ("sync_replicas", WORKER, signal.SIGKILL, 0), ("async", WORKER, signal.SIGSTOP, 0)]
FULL = [(mode, task, number, restarts) for mode in MODES for task in (PS, WORKER)
        for number in (signal.SIGKILL, signal.SIGSTOP) for restarts in (0, 3)]


def start(arguments, mode, restarts, steps, folder):
    """Starts a job, and returns it when both workers have made steps, or when it has ended."""
    if restarts:
        program = [arguments.trainer, "--update-mode", mode, "--train_steps", str(steps)]
        begun = ("worker 0   step", "worker 1   step")
    else:
        # Workers treat SIGTERM as a stop request and end after the current step.
        program = [arguments.loop, "--strategy", "parameter_server", "--update-mode", mode, "--devices", "cpu:0",
                   "--epochs", "1000", "--train-examples", "1000", "--test-examples", "100", "--checkpoint-dir", folder]
        begun = ("epoch 2/",)
    # The grace period is long, so that the launcher does not end a waiting task before the task
    # ends by itself.
    job = Job([arguments.tutti, "run", "--workers", "2", "--ps", "2", "--grace", str(10 * LONGEST), "--max-restarts", str(restarts),
               "--", *program])
    job.wait_for(lambda: all(each in job.text() for each in begun) or "result" in job.text(), "training")
    return job


def hit(arguments, mode, task, number, restarts):
    """Sends the signal; returns the job, its number of steps, and its exit code. Tries again if fast workers finish too early."""
    steps = STEPS
    while True:
        with tempfile.TemporaryDirectory() as folder:
            job = start(arguments, mode, restarts, steps, folder)
            pid = job.pids().get(task) if "result" not in job.text() else None
            if pid:
                os.kill(pid, number)
                if "result" not in job.text():
                    return job, steps, job.finish()
            job.kill()
        steps *= 4


def check(arguments, mode, task, number, restarts):
    """Requires that the job, without help, either ends with an error that names the task, or continues."""
    begin = time.monotonic()
    job, steps, code = hit(arguments, mode, task, number, restarts)
    text, name, victim = job.text(), "{} {}".format(*task), "{}-{}".format(*task)
    what = f"{mode}, {name}, {signal.Signals(number).name}, {restarts} restarts"
    again = set(re.findall(r"(\w+-\d): .*; restarting it", text))
    is_stopped = number == signal.SIGSTOP
    require(not is_stopped or re.search(rf"{name} \(.*\) is stopped: state T", text), f"{what}: expected a line that {name} is stopped", text)
    if not restarts:
        # Other tasks may fail because of a stopped task before the launcher kills it.
        is_named = is_stopped or f"{victim} failed first: killed by signal 9" in text
        require(code != 0 and is_named and not again, f"{what}: the job ended with {code}; expected it to fail because of {victim}", text)
    else:
        should_continue = task == WORKER and mode == "async"
        expected = {victim} if should_continue else {"worker-0", "worker-1", "ps-0", "ps-1"}
        require(code == 0 and again == expected,
                f"{what}: the job ended with {code} and restarted {sorted(again)}; expected 0 and {sorted(expected)}", text)
        require(should_continue or re.search(rf"\[(?!{victim}).*{name} \(.*(died|is stopped)", text), f"{what}: no other task named {name}", text)
        step = re.search(r"result +global step (\d+)", text)
        require(step and int(step[1]) >= steps, f"{what}: worker 0 did not train to the end", text)
    say(what, begin)


def main():
    arguments = parse(__doc__, "trainer", "loop", "tutti", full=False, only=None)
    cases = FULL if arguments.full else SHORT
    if arguments.only:
        mode, job, name, restarts = arguments.only.split(",")
        cases = [(mode, (job, 1), signal.Signals[name], int(restarts))]
    for case in cases:
        check(arguments, *case)


if __name__ == "__main__":
    end_with(main)
