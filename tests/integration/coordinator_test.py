#!/usr/bin/env python3
# A coordinator, its workers and servers as processes: exact counts while they die, and ends that have a name.
# SPDX-License-Identifier: Apache-2.0
"""Usage: coordinator_test.py COUNTER EXAMPLE TUTTI [--closures N] [--kills N]

COUNTER is coordinated_counter, EXAMPLE parameter_server_custom_loop.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from multi_worker_test import free_ports

LONGEST = 240  # seconds that anything here may take
LONG_ENOUGH = 1.3  # a process that lives shorter has "failed at once", which the launcher counts
APART = 50  # closures between two kills: one that two workers died of would count as what kills them


class Failure(Exception):
    pass


def require(condition, what, text=""):
    if not condition:
        raise Failure(f"{what}\n{text}")


def say(what, begin):
    print(f"  {what}: {time.monotonic() - begin:.1f} s", flush=True)


def run_checks(checks, only):
    """Runs those that `only` names, with commas between, or all; the program's exit code."""
    for name, check in checks.items():
        if only and name not in only.split(","):
            continue
        try:
            check()
        except Failure as failure:
            print(f"FAILED: {name}: {failure}", flush=True)
            return 1
    return 0


# --- Under `tutti run`.

class Launch:
    """A launched job whose lines are read as they come."""

    def __init__(self, tutti, flags, program):
        self.process = subprocess.Popen([tutti, "run", *flags, "--", *program], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.times, self.lines, self.pids, self.is_started, self.num_done = [], [], {}, threading.Event(), 0
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.times.append(time.monotonic())
            self.lines.append(line)
            found = re.search(r"task (chief|worker|ps) (\d+) pid (\d+)", line)
            if found:
                self.pids[found[1], int(found[2])] = (int(found[3]), time.monotonic())
            if re.search(r"\[chief-0\]: started", line):
                self.is_started.set()
            found = re.search(r"\[chief-0\]: at (\d+)", line)
            if found:
                self.num_done = int(found[1])

    def text(self):
        return "".join(self.lines)

    def finish(self):
        """The exit code; everything has ended then."""
        try:
            code = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            raise Failure(f"the job did not end within {LONGEST} s\n{self.text()}") from None
        self.reader.join(10)
        return code

    def kill_some_worker(self, chance):
        """SIGKILL for one that lives for long enough; waits for one. False when the job has ended."""
        done = self.num_done
        while self.process.poll() is None:
            if self.num_done < done + APART:
                time.sleep(0.02)
                continue
            now = time.monotonic()
            old_enough = [pid for (job, _), (pid, since) in list(self.pids.items())
                          if job == "worker" and now - since > LONG_ENOUGH and os.path.exists(f"/proc/{pid}")]
            if old_enough:
                try:
                    os.kill(chance.choice(old_enough), signal.SIGKILL)
                    return True
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        return False


def check_example(tutti, example):
    """The tf tutorial's program: every process ends with 0, and the model has learnt."""
    begin = time.monotonic()
    for flags in (["--chief", "--workers", "3", "--ps", "2"], None):
        command = [tutti, "run", *flags, "--", example] if flags else [example]
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST)
        text = result.stdout
        require(result.returncode == 0, f"the example ended with {result.returncode}", text)
        epochs = re.findall(r"Finished epoch (\d), accuracy is ([0-9.]+)\.$", text, re.MULTILINE)
        require([number for number, _ in epochs] == ["0", "1", "2", "3"], "expected four epochs", text)
        # Of an epoch's accuracy nothing is said: on a busy machine a worker's gradient may be many steps late.
        evaluation = re.search(r"Evaluation accuracy: ([0-9.]+)$", text, re.MULTILINE)
        require(evaluation and float(evaluation.group(1)) >= 0.75, "it has not learnt", text)
        for server in range(2):
            require(f"on /job:ps/replica:0/task:{server}/device:CPU:0" in text, f"nothing is on ps {server}", text)
        require("Evaluation accuracy: 1.0" in text or "Evaluation accuracy: 0." in text, "no evaluation", text)
    say("the example, as processes and in one", begin)


def check_killed_workers(tutti, counter, closures, kills):
    """However many workers are killed, each closure counts once."""
    begin = time.monotonic()
    chance = random.Random(7)
    pause_ms = max(1, round(3 * 1000 * 1.5 * (kills + 1) / closures))  # time to be old enough
    job = Launch(tutti, ["--chief", "--workers", "3", "--ps", "2", "--max-restarts", "1000"],
                 [counter, "--closures", str(closures), "--pause-ms", str(pause_ms)])
    require(job.is_started.wait(LONGEST), "the job did not start", job.text())
    killed = 0
    while killed < kills and job.kill_some_worker(chance):
        killed += 1
    code = job.finish()
    require(code == 0, f"the job ended with {code} after {killed} kills", job.text())
    require(f"counted {closures} of {closures}" in job.text(), "the count is not exact", job.text())
    require(killed == kills, f"only {killed} workers were killed; try more closures", job.text())
    require(job.text().count("[chief-0]: started") == 1, "the chief was started again", job.text())
    require("is lost" in job.text() and "is here again" in job.text(), "nobody was missed", job.text())
    say(f"{closures} closures, {killed} workers killed", begin)


def check_stopped_worker(tutti, counter):
    """A worker that says nothing is given up, killed by the launcher, and comes back."""
    begin = time.monotonic()
    job = Launch(tutti, ["--chief", "--workers", "2", "--ps", "1", "--max-restarts", "3"],
                 [counter, "--closures", "1500", "--pause-ms", "10"])
    require(job.is_started.wait(LONGEST), "the job did not start", job.text())
    time.sleep(LONG_ENOUGH)
    os.kill(job.pids["worker", 0][0], signal.SIGSTOP)
    code = job.finish()
    require(code == 0, f"the job ended with {code}", job.text())
    require("counted 1500 of 1500" in job.text(), "the count is not exact", job.text())
    require(re.search(r"worker 0 \(.*\) is stopped: state T", job.text()), "nobody said who is stopped", job.text())
    say("a stopped worker", begin)


def check_restarted_chief(tutti, counter):
    """Without a journal a chief that is started again begins anew, with new workers and servers."""
    begin = time.monotonic()
    job = Launch(tutti, ["--chief", "--workers", "2", "--ps", "2", "--max-restarts", "10"],
                 [counter, "--closures", "200", "--pause-ms", "10"])
    require(job.is_started.wait(LONGEST), "the job did not start", job.text())
    os.kill(job.pids["chief", 0][0], signal.SIGKILL)
    code = job.finish()
    require(code == 0, f"the job ended with {code}", job.text())
    require(job.text().count("[chief-0]: started") >= 2, "the chief was not started again", job.text())
    require("counted 200 of 200" in job.text(), "the count is not exact", job.text())
    say("a chief that is started again", begin)


# --- By hand, with TF_CONFIG.

class Cluster:
    """One process per task. {(job, index): process}"""

    def __init__(self, program, workers, servers, more_flags=None):
        ports = [f"127.0.0.1:{port}" for port in free_ports(1 + workers + servers)]
        self.cluster = {"chief": ports[:1], "worker": ports[1:1 + workers], "ps": ports[1 + workers:]}
        self.program, self.more_flags = program, more_flags or {}
        self.processes = {}
        for job, addresses in self.cluster.items():
            for index in range(len(addresses)):
                self.start(job, index)

    def start(self, job, index):
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        self.processes[job, index] = subprocess.Popen(
            [*self.program, *self.more_flags.get((job, index), [])], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "TF_CONFIG": json.dumps(config)})

    def wait_until_started(self):
        for line in self.processes["chief", 0].stdout:
            if line == "started\n":
                return
        raise Failure("the chief ended before it had started")

    def finish(self):
        """{task: (exit code, output)}"""
        ends = {}
        try:
            for task, process in self.processes.items():
                ends[task] = (process, process.communicate(timeout=LONGEST)[0])
        except subprocess.TimeoutExpired:
            raise Failure(f"{task} did not end within {LONGEST} s") from None
        finally:
            for process in self.processes.values():
                process.kill()
        return {task: (process.returncode, text) for task, (process, text) in ends.items()}


def all_text(ends):
    return "\n".join(f"--- {task}: exit code {code}\n{text}" for task, (code, text) in ends.items())


def check_by_hand(counter):
    """Every process ends with 0 by itself."""
    begin = time.monotonic()
    ends = Cluster([counter, "--closures", "100"], 2, 2).finish()
    require(all(code == 0 for code, _ in ends.values()), "not every process ended well", all_text(ends))
    require("counted 100 of 100" in ends["chief", 0][1], "the count is not exact", all_text(ends))
    say("TF_CONFIG by hand", begin)


def check_worker_killed_by_hand(counter):
    """A worker that nobody starts again is missed by nobody; one that is comes in."""
    begin = time.monotonic()
    job = Cluster([counter, "--closures", "1000", "--pause-ms", "5"], 3, 1)
    job.wait_until_started()
    for worker in range(2):
        job.processes["worker", worker].kill()
        job.processes["worker", worker].communicate()
    job.start("worker", 1)
    killed = job.processes.pop(("worker", 0))
    ends = job.finish()
    require(killed.returncode == -signal.SIGKILL, "worker 0 ended otherwise")
    require(all(code == 0 for code, _ in ends.values()), "not every process ended well", all_text(ends))
    require("counted 1000 of 1000" in ends["chief", 0][1], "the count is not exact", all_text(ends))
    say("two workers killed, one started again", begin)


def check_continued_worker(counter):
    """A worker that was given up while it was stopped changes nothing twice when it goes on, and ends."""
    begin = time.monotonic()
    job = Cluster([counter, "--closures", "600", "--pause-ms", "10"], 2, 1)
    job.wait_until_started()
    stopped = job.processes["worker", 0]
    time.sleep(0.3)
    stopped.send_signal(signal.SIGSTOP)
    for line in job.processes["worker", 1].stdout:
        if re.search(r"worker 0 \(.*\) is stopped", line):
            break
    stopped.send_signal(signal.SIGCONT)
    ends = job.finish()
    code, text = ends.pop(("worker", 0))
    require(code == 1 and "worker 0: ends: the job gave this process up" in text, f"worker 0 ended with {code}", text)
    require(all(code == 0 for code, _ in ends.values()), "not every process ended well", all_text(ends))
    require("counted 600 of 600" in ends["chief", 0][1], "the count is not exact", all_text(ends))
    say("a worker that was stopped for a while", begin)


def check_lost_chief(counter, number, pattern):
    """Workers and servers end with code 1 and the chief's name; they do not wait for ever."""
    job = Cluster([counter, "--closures", "100000", "--pause-ms", "5"], 2, 2)
    job.wait_until_started()
    begin = time.monotonic()
    job.processes["chief", 0].send_signal(number)
    others = {task: process for task, process in job.processes.items() if task[0] != "chief"}
    for task, process in others.items():
        text = process.communicate(timeout=LONGEST)[0]
        require(process.returncode == 1, f"{task} ended with {process.returncode}; expected 1", text)
        require(re.search(rf"{task[0]} {task[1]}: ends: .*chief 0 .*{pattern}", text), f"{task} names nobody", text)
    job.processes["chief", 0].kill()
    job.processes["chief", 0].communicate()
    say(f"the chief gets {signal.Signals(number).name}", begin)


def check_failing_chief(counter):
    """An exception that ends the chief's run is not taken for a good end."""
    begin = time.monotonic()
    ends = Cluster([counter, "--closures", "20", "--throws-at-end"], 2, 1).finish()
    require(all(code == 1 for code, _ in ends.values()), "expected 1 from all", all_text(ends))
    for task, (_, text) in ends.items():
        require(task[0] == "chief" or "the coordinator is lost: chief 0: " in text, f"{task} gave no reason", text)
    say("the chief throws", begin)


def check_dead_server(counter):
    """The error names the server, and is told apart from a worker's."""
    begin = time.monotonic()
    job = Cluster([counter, "--closures", "100000", "--pause-ms", "5"], 2, 2)
    job.wait_until_started()
    job.processes["ps", 1].kill()
    ends = job.finish()
    require(ends["chief", 0][0] == 1, "the chief did not fail", all_text(ends))
    require(re.search(r"error: .*closure \d+ on worker \d+, attempt \d+, ps error: .*ps 1", ends["chief", 0][1]),
            "the error does not name ps 1", ends["chief", 0][1][-3000:])
    say("a dead server", begin)


def check_dead_server_beside_worker(counter):
    """A server that dies while a worker's death is being dealt with is an error with its name, and no hang."""
    begin = time.monotonic()
    job = Cluster([counter, "--closures", "100000", "--pause-ms", "5"], 2, 2)
    job.wait_until_started()
    time.sleep(0.3)
    for task in (("worker", 0), ("ps", 1)):
        job.processes[task].kill()
    ends = job.finish()
    require(ends["chief", 0][0] == 1, "the chief did not fail", all_text(ends))
    require(re.search(r"error: .*ps error: .*ps 1", ends["chief", 0][1]), "the error does not name ps 1",
            ends["chief", 0][1][-3000:])
    say("a dead server beside a dead worker", begin)


def check_reads_beside_dead_worker(counter):
    """Variables are read while a worker is away, starts again, and is back."""
    begin = time.monotonic()
    job = Cluster([counter, "--closures", "50", "--reads", "200"], 2, 1)
    for line in job.processes["chief", 0].stdout:
        if line.startswith("read 10"):
            break
    job.processes["worker", 0].kill()
    job.processes["worker", 0].communicate()
    for line in job.processes["chief", 0].stdout:
        if line.startswith("read 80"):
            break
    job.start("worker", 0)
    ends = job.finish()
    require(all(code == 0 for code, _ in ends.values()), "not every process ended well", all_text(ends))
    require("worker 0 is here again" in ends["chief", 0][1], "the worker did not come back", all_text(ends))
    require("counted 50 of 50" in ends["chief", 0][1], "the count is not exact", all_text(ends))
    say("200 reads while a worker is away and back", begin)


def check_other_steps(counter):
    """A worker of another program is refused, naming the step."""
    begin = time.monotonic()
    ends = Cluster([counter, "--closures", "10"], 2, 1,
                   more_flags={("worker", 1): ["--another-step", "extra"]}).finish()
    code, text = ends["chief", 0]
    require(code == 1, f"the chief ended with {code}", all_text(ends))
    require("ClusterCoordinator::start" in text and "worker 1" in text and "extra" in text, "no name", text)
    say("a worker with other steps", begin)


def check_early_write(counter):
    """What a worker changes before start() would be changed by each: refused there."""
    begin = time.monotonic()
    ends = Cluster([counter, "--closures", "10", "--join-timeout-s", "8"], 1, 1,
                   more_flags={("worker", 0): ["--writes-early"]}).finish()
    code, text = ends["worker", 0]
    require(code == 1 and "worker 0: a variable is changed before ClusterCoordinator::serve()" in text,
            "the worker was not refused", all_text(ends))
    text = ends["chief", 0][1]
    require("no worker is there" in text and "worker 0" in text, "the chief does not say who is missing", text)
    say("a worker that writes early; a chief without workers", begin)


def check_no_chief(counter, tutti):
    """A cluster without chief cannot be coordinated."""
    result = subprocess.run([tutti, "run", "--workers", "2", "--ps", "1", "--", counter], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST)
    require(result.returncode == 1 and "expected a chief" in result.stdout, "no error", result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counter")
    parser.add_argument("example")
    parser.add_argument("tutti")
    parser.add_argument("--closures", type=int, default=1200)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    counter, tutti = arguments.counter, arguments.tutti
    checks = {
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
        "server_and_worker": lambda: check_dead_server_beside_worker(counter),
        "reads": lambda: check_reads_beside_dead_worker(counter),
        "steps": lambda: check_other_steps(counter),
        "early_write": lambda: check_early_write(counter),
        "no_chief": lambda: check_no_chief(counter, tutti),
    }
    return run_checks(checks, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
