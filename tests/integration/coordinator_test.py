#!/usr/bin/env python3
# Runs coordinator, workers and servers as processes: counts are exact despite deaths, and errors
# name the cause.
# SPDX-License-Identifier: Apache-2.0
"""Usage: coordinator_test.py COUNTER EXAMPLE TUTTI [--closures N] [--kills N] [--only NAMES]

COUNTER is coordinated_counter, EXAMPLE parameter_server_custom_loop.
"""
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import LONGEST, Job, Tasks, end_with, output_of, parse, require, run_checks  # noqa: E402

LONG_ENOUGH = 1.3  # seconds for which a process runs before the test kills it
APART = 50  # closures between two kills: two deaths during one closure would blame the closure


class Launch(Job):
    """Job of `tutti run` whose chief counts closures."""

    def __init__(self, tutti, flags, program):
        super().__init__([tutti, "run", *flags, "--", *program])
        self.wait_for_line(r"\[chief-0\]: started")

    def num_done(self):
        line = next((line for line in reversed(self.lines) if "[chief-0]: at " in line.text), None)
        return int(re.search(r": at (\d+)", line.text)[1]) if line else 0

    def tasks(self):
        """Returns {(job, index): (pid, start)} from the launcher's log."""
        found = {}
        for line in list(self.lines):
            match = re.search(r"task (chief|worker|ps) (\d+) pid (\d+)", line.text)
            if match:
                found[match[1], int(match[2])] = (int(match[3]), line.time)
        return found

    def kill_some(self, chance, job, may_kill):
        """Kills a process of the job that has run for a while; returns its task, or None if the run has ended."""
        while self.process.poll() is None:
            now = time.monotonic()
            old_enough = [(task, pid) for task, (pid, since) in self.tasks().items()
                          if task[0] == job and now - since > LONG_ENOUGH and os.path.exists(f"/proc/{pid}")]
            if old_enough and may_kill(now):
                task, pid = chance.choice(old_enough)
                try:
                    os.kill(pid, signal.SIGKILL)
                    return task
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        return None

    def require_count(self, closures):
        self.succeed(f"counted {closures} of {closures}")


def check_example(tutti, example):
    """Runs the program of tf's tutorial: every process ends with 0, and the model learns."""
    for launcher in ([tutti, "run", "--chief", "--workers", "3", "--ps", "2", "--"], []):
        text = output_of(*launcher, example)
        epochs = re.findall(r"Finished epoch (\d), accuracy is [0-9.]+\.$", text, re.MULTILINE)
        require(epochs == ["0", "1", "2", "3"], "expected four epochs", text)
        # The epochs' accuracy is not checked, because on a busy machine a gradient may be many
        # steps late.
        evaluation = re.search(r"Evaluation accuracy: ([0-9.]+)$", text, re.MULTILINE)
        require(evaluation and float(evaluation[1]) >= 0.75, "expected an evaluation accuracy of at least 0.75", text)
        for server in range(2):
            require(f"on /job:ps/replica:0/task:{server}/device:CPU:0" in text, f"expected a variable on ps {server}", text)


def check_killed_workers(tutti, counter, closures, kills):
    """Each closure counts once, however many workers are killed."""
    chance = random.Random(7)
    pause_ms = max(1, round(3 * 1000 * 1.5 * (kills + 1) / closures))  # long enough for processes to count as started
    job = Launch(tutti, ["--chief", "--workers", "3", "--ps", "2", "--max-restarts", "1000"],
                 [counter, "--closures", str(closures), "--pause-ms", str(pause_ms)])
    for killed in range(kills):
        done = job.num_done()
        require(job.kill_some(chance, "worker", lambda _, done=done: job.num_done() >= done + APART),
                f"only {killed} workers were killed; try more closures", job.text())
    job.require_count(closures)
    require(job.count(r"\[chief-0\]: started") == 1, "the chief was started again", job.text())
    require(job.count("is lost") and job.count("has reconnected"), "expected lines about a lost worker and its reconnection", job.text())


def check_stopped_worker(tutti, counter):
    """Stops a worker: the job declares it lost, the launcher kills it, and its new process rejoins."""
    job = Launch(tutti, ["--chief", "--workers", "2", "--ps", "1", "--max-restarts", "3"],
                 [counter, "--closures", "1500", "--pause-ms", "10"])
    time.sleep(LONG_ENOUGH)
    job.send(signal.SIGSTOP, ("worker", 0))
    job.require_count(1500)
    require(job.count(r"worker 0 \(.*\) is stopped: state T"), "expected a line that says that worker 0 is stopped", job.text())


def check_restarted_chief(tutti, counter):
    """Without a checkpoint, a restarted chief begins at 0, with new workers and servers."""
    job = Launch(tutti, ["--chief", "--workers", "2", "--ps", "2", "--max-restarts", "10"],
                 [counter, "--closures", "200", "--pause-ms", "10"])
    job.send(signal.SIGKILL, ("chief", 0))
    job.require_count(200)
    require(job.count(r"\[chief-0\]: started") >= 2, "the chief was not started again", job.text())


# --- Processes started separately, with TF_CONFIG.

def by_hand(counter, workers, servers, *flags, waits=True, more_flags=None):
    tasks = Tasks([counter, *flags], {"chief": 1, "worker": workers, "ps": servers}, more_flags=more_flags)
    if waits:
        tasks["chief", 0].wait_for_line("^started$")
    return tasks


def endless(counter):
    return by_hand(counter, 2, 2, "--closures", "100000", "--pause-ms", "5")


def require_count(tasks, closures):
    """Requires that every process ends by itself with code 0."""
    tasks.finish()
    require(f"counted {closures} of {closures}" in tasks["chief", 0].text(), "the count is not exact", tasks.text())


def require_error(tasks, pattern, who=("chief", 0)):
    require(tasks[who].finish() == 1 and re.search(pattern, tasks[who].text()), f"expected code 1 and '{pattern}' from {who[0]} {who[1]}",
            tasks.text())


def require_all_end(tasks):
    """Requires that all processes end after a refused start, with any exit code."""
    for job in tasks.jobs.values():
        job.finish()


def check_by_hand(counter):
    require_count(by_hand(counter, 2, 2, "--closures", "100", waits=False), 100)


def check_worker_killed_by_hand(counter):
    """The job does not wait for a dead worker that is not restarted; a worker that is restarted by hand joins."""
    tasks = by_hand(counter, 3, 1, "--closures", "1000", "--pause-ms", "5")
    chief = tasks["chief", 0]
    for worker in range(2):
        tasks["worker", worker].kill()
        lost = chief.wait_for_line(f"worker {worker} is lost")
        chief.wait_for_line(r"^at \d+", lost.time)  # a closure during which two workers die is an error
    tasks.start("worker", 1)
    tasks.jobs.pop(("worker", 0))
    require_count(tasks, 1000)


def check_continued_worker(counter):
    """A worker that was declared lost while stopped must end when it is resumed, without repeating changes."""
    tasks = by_hand(counter, 2, 1, "--closures", "600", "--pause-ms", "10")
    time.sleep(0.3)
    tasks["worker", 0].send(signal.SIGSTOP)
    tasks["worker", 1].wait_for_line(r"worker 0 \(.*\) is stopped")
    tasks["worker", 0].send(signal.SIGCONT)
    require_error(tasks, "worker 0: ends: the job declared this process lost", ("worker", 0))
    tasks.jobs.pop(("worker", 0))
    require_count(tasks, 600)


def check_lost_chief(counter, number, pattern):
    """Workers and servers end with code 1 and name the chief; they do not wait indefinitely."""
    tasks = endless(counter)
    tasks["chief", 0].send(number)
    for task in tasks.jobs:
        if task != ("chief", 0):
            require_error(tasks, rf"{task[0]} {task[1]}: ends: .*chief 0 .*{pattern}", task)
    tasks.kill()


def check_failing_chief(counter):
    """An exception in the chief is not mistaken for success."""
    tasks = by_hand(counter, 2, 1, "--closures", "20", "--throws-at-end", waits=False).finish(1)
    for task, job in tasks.jobs.items():
        require(task[0] == "chief" or "the coordinator is lost: chief 0: " in job.text(), f"{task} gave no reason", tasks.text())


def check_dead_server(counter, *others):
    """Without a checkpoint, the error names the dead server, even if a worker dies at the same time."""
    tasks = endless(counter)
    time.sleep(0.3)
    for task in [*others, ("ps", 1)]:
        tasks[task].process.kill()
    require_error(tasks, r"error: .*ps 1.*; its variables are lost.*checkpoint_folder")
    for job in tasks.jobs.values():
        job.finish()


def check_reads_beside_dead_worker(counter):
    """Reads variables while a worker is dead, restarts, and has rejoined."""
    tasks = by_hand(counter, 2, 1, "--closures", "50", "--reads", "200", waits=False)
    tasks["chief", 0].wait_for_line("^read 10")
    tasks["worker", 0].kill()
    tasks["chief", 0].wait_for_line("^read 80")
    tasks.start("worker", 0)
    require_count(tasks, 50)
    require("worker 0 has reconnected" in tasks["chief", 0].text(), "worker 0 did not reconnect", tasks.text())


def check_other_steps(counter):
    """A worker that defines other steps than the chief is refused; the error names the step."""
    tasks = by_hand(counter, 2, 1, "--closures", "10", waits=False, more_flags={("worker", 1): ["--another-step", "extra"]})
    for pattern in ("ClusterCoordinator::start", "worker 1", "extra"):
        require_error(tasks, pattern)
    require_all_end(tasks)


def check_early_write(counter):
    """Changes before serve() would be repeated by each worker, so they are refused."""
    tasks = by_hand(counter, 1, 1, "--closures", "10", "--join-timeout-s", "8", waits=False, more_flags={("worker", 0): ["--writes-early"]})
    require_error(tasks, r"worker 0: a variable was changed before ClusterCoordinator::serve\(\)", ("worker", 0))
    for pattern in ("no worker joined within", "worker 0"):
        require_error(tasks, pattern)
    require_all_end(tasks)


def check_no_chief(counter, tutti):
    """A cluster without a chief cannot be coordinated."""
    result = subprocess.run([tutti, "run", "--workers", "2", "--ps", "1", "--", counter], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST)
    require(result.returncode == 1 and "expected a chief" in result.stdout, "no error", result.stdout)


def main():
    arguments = parse(__doc__, "counter", "example", "tutti", closures=1200, kills=6, only="")
    counter, tutti = arguments.counter, arguments.tutti
    run_checks({
        "example": lambda: check_example(tutti, arguments.example),
        "by_hand": lambda: check_by_hand(counter),
        "kills": lambda: check_killed_workers(tutti, counter, arguments.closures, arguments.kills),
        "stopped": lambda: check_stopped_worker(tutti, counter),
        "chief_again": lambda: check_restarted_chief(tutti, counter),
        "killed_by_hand": lambda: check_worker_killed_by_hand(counter),
        "continued": lambda: check_continued_worker(counter),
        "chief_killed": lambda: check_lost_chief(counter, signal.SIGKILL, "died"),
        "chief_stopped": lambda: check_lost_chief(counter, signal.SIGSTOP, "is stopped: state T"),
        "chief_throws": lambda: check_failing_chief(counter),
        "server": lambda: check_dead_server(counter),
        "server_and_worker": lambda: check_dead_server(counter, ("worker", 0)),
        "reads": lambda: check_reads_beside_dead_worker(counter),
        "steps": lambda: check_other_steps(counter),
        "early_write": lambda: check_early_write(counter),
        "no_chief": lambda: check_no_chief(counter, tutti),
    }, arguments.only)


if __name__ == "__main__":
    end_with(main)
