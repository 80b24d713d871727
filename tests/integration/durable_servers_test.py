#!/usr/bin/env python3
# Workers, servers and the coordinator are killed at random, and connections reset: the counts are exact.
# SPDX-License-Identifier: Apache-2.0
"""Usage: durable_servers_test.py COUNTER TUTTI [--closures N] [--kills N] [--only NAMES]

COUNTER is coordinated_counter.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import tcp_proxy
from coordinator_test import all_text, Cluster, Failure, Launch, LONG_ENOUGH, LONGEST, require, run_checks, say
from multi_worker_test import free_ports

JOBS = ("ps", "worker", "chief", "ps", "worker")  # who is killed, in turn; which of them, and when, is chance


class Durable(Launch):
    """A launched job, any process of which is killed now and then."""

    def kill_some(self, chance, job):
        """SIGKILL for one that lives for long enough; its task, or None when the job has ended."""
        while self.process.poll() is None:
            now = time.monotonic()
            old_enough = [(task, pid) for task, (pid, since) in list(self.pids.items())
                          if task[0] == job and now - since > LONG_ENOUGH and os.path.exists(f"/proc/{pid}")]
            if old_enough and self.all_are_here(now):
                task, pid = chance.choice(old_enough)
                try:
                    os.kill(pid, signal.SIGKILL)
                    return task
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        return None

    def all_are_here(self, now):
        """Whether training goes on: everybody lives for a while."""
        return all(now - since > LONG_ENOUGH for _, since in self.pids.values()) and self.num_done > 0


def run_flags(folder, closures, pause_ms, every=50):
    return ["--closures", str(closures), "--pause-ms", str(pause_ms), "--durability", "logged", "--folder", folder,
            "--every-closures", str(every)]


def check_kills(tutti, counter, closures, kills, jobs=JOBS, seed=11):
    """Whatever is killed when, each closure counts once."""
    begin = time.monotonic()
    chance = random.Random(seed)
    folder = tempfile.mkdtemp(prefix="tutti_durable_")
    # Time for every kill, and for what comes back to be old enough for the next one, also on a busy machine.
    pause_ms = max(1, round(3 * 1000 * 3.5 * kills / closures))
    job = Durable(tutti, ["--chief", "--workers", "3", "--ps", "2", "--max-restarts", "1000"],
                  [counter, *run_flags(folder, closures, pause_ms)])
    killed = []
    try:
        require(job.is_started.wait(LONGEST), "the job did not start", job.text())
        while len(killed) < kills:
            time.sleep(chance.random() * 0.5)
            task = job.kill_some(chance, jobs[len(killed) % len(jobs)])
            if task is None:
                break
            killed.append(task)
        code = job.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    names = ", ".join(f"{job_name} {index}" for job_name, index in killed)
    require(code == 0, f"the job ended with {code} after these were killed: {names}", job.text())
    require(f"counted {closures} of {closures}" in job.text(), f"the count is not exact; killed: {names}", job.text())
    require(len(killed) == kills, f"only {len(killed)} processes were killed; try more closures", job.text())
    say(f"{closures} closures, killed: {names}", begin)
    return job


def check_stopped_server(tutti, counter):
    """A server that says nothing is given up, killed by the launcher, and another one has its place."""
    begin = time.monotonic()
    folder = tempfile.mkdtemp(prefix="tutti_durable_")
    job = Durable(tutti, ["--chief", "--workers", "2", "--ps", "2", "--max-restarts", "5"],
                  [counter, *run_flags(folder, 600, 10)])
    try:
        require(job.is_started.wait(LONGEST), "the job did not start", job.text())
        time.sleep(LONG_ENOUGH)
        os.kill(job.pids["ps", 1][0], signal.SIGSTOP)
        code = job.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    require(code == 0, f"the job ended with {code}", job.text())
    require("counted 600 of 600" in job.text(), "the count is not exact", job.text())
    require(re.search(r"ps 1 \(.*\) is stopped: state T", job.text()), "nobody said who is stopped", job.text())
    require(job.text().count("[chief-0]: started") == 1, "the chief was started again", job.text())
    say("a stopped server", begin)


MOST_QUEUED = 4000  # closures that a coordinator takes at once; what it has done is printed after that
GOAL = 0.5  # seconds; printed beside what is measured, not judged: other programs have the machine, too


def recovery_of_one(job, victim):
    """Kills ps `victim`; seconds until its process is there again, until it has its state, until steps are done."""
    pid, _ = job.pids["ps", victim]
    num_lines, begin = len(job.lines), time.monotonic()
    os.kill(pid, signal.SIGKILL)

    def when(pattern, after):
        end = begin + LONGEST
        while time.monotonic() < end and job.process.poll() is None:
            for place in range(after, len(job.lines)):
                if re.search(pattern, job.lines[place]):
                    return job.times[place] - begin, place + 1
            time.sleep(0.002)
        raise Failure(f"'{pattern}' did not come after ps {victim} was killed\n{job.text()}")

    process_at, _ = when(rf"task ps {victim} pid", num_lines)
    state_at, place = when(rf"ps {victim}: is at cut", num_lines)
    # A line is printed every ten closures.
    step_at, _ = when(r"\[chief-0\]: at \d+", place)
    return process_at, state_at, step_at


LARGE = ["--ballast-mib", "96"]  # 100 MB of float32 on two servers, and changes of 64 KiB


def recoveries(tutti, counter, closures, kills, more=(), ends=False):
    """Rows of recovery_of_one(), each of another server of two in turn. `ends`: all closures are counted, too."""
    folder = tempfile.mkdtemp(prefix="tutti_durable_")
    job = Durable(tutti, ["--chief", "--workers", "2", "--ps", "2", "--max-restarts", "1000"],
                  [counter, *run_flags(folder, closures, 6, every=500), *more])
    times = []
    try:
        require(job.is_started.wait(LONGEST), "the job did not start", job.text())
        for i in range(kills):
            end = time.monotonic() + LONGEST
            while not job.all_are_here(time.monotonic()):
                require(job.process.poll() is None and time.monotonic() < end, "the job ended", job.text())
                time.sleep(0.02)
            times.append(recovery_of_one(job, i % 2))
        if ends:
            code = job.finish()
            require(code == 0, f"the job ended with {code}", job.text())
            require(f"counted {closures} of {closures}" in job.text(), "the count is not exact", job.text())
    finally:
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        shutil.rmtree(folder, ignore_errors=True)
    return times


def print_recoveries(times):
    columns = [sorted(column) for column in zip(*times)]
    print("    " + "".join(f"{column[len(column) // 2]:7.2f} ({column[-1]:.2f})" for column in columns),
          flush=True)


def check_recovery(tutti, counter, kills):
    """How long a killed server process is missed; judged is that all comes back."""
    begin = time.monotonic()
    print(f"  recovery of a killed server, median (worst) in s: process there, state there, the next step done (goal {GOAL})",
          flush=True)
    print_recoveries(recoveries(tutti, counter, MOST_QUEUED, kills))
    say("recovery", begin)


def check_large_recovery(tutti, counter, kills):
    """The same with 100 MB of variables, all changes of which are counted once."""
    begin = time.monotonic()
    print("  the same with 100 MB of variables", flush=True)
    print_recoveries(recoveries(tutti, counter, 400 * kills, kills, LARGE, ends=True))
    say("recovery of 100 MB", begin)


def resident_mib(pid):
    """Of the memory that belongs to a process alone."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", file.read(), re.MULTILINE)[1]) / 1024


def check_memory(tutti, counter):
    """The variables' bytes are in the servers, beyond the initial values that every task makes; they survive the death of a worker."""
    begin = time.monotonic()
    closures, ballast = 400, 192
    job = Durable(tutti, ["--chief", "--workers", "2", "--ps", "2", "--max-restarts", "5"],
                  [counter, "--closures", str(closures), "--pause-ms", "10", "--ballast-mib", str(ballast)])
    try:
        require(job.is_started.wait(LONGEST), "the job did not start", job.text())
        while job.num_done < closures // 4 and job.process.poll() is None:
            time.sleep(0.02)
        own = {task: resident_mib(pid) for task, (pid, _) in job.pids.items() if task[0] != "chief"}
        require(job.kill_some(random.Random(3), "worker"), "no worker was killed", job.text())
    finally:
        code = job.finish()
    require(code == 0, f"the job ended with {code}", job.text())
    require(f"counted {closures} of {closures}" in job.text(), "the count is not exact", job.text())
    shown = ", ".join(f"{name} {index} {mib:.0f} MiB" for (name, index), mib in sorted(own.items()))
    workers = max(mib for (name, _), mib in own.items() if name == "worker")
    require(all(mib > workers + ballast / 2 for (name, _), mib in own.items() if name == "ps"),
            f"expected {ballast // 2} MiB more on either server than on a worker, got {shown}")
    say(f"{ballast} MiB of variables: {shown}", begin)


# --- By hand, with TF_CONFIG, through a proxy.

class Tasks:
    """One process per task, started again when it dies; connections to servers and workers pass a proxy."""

    def __init__(self, program, workers, servers):
        self.program = program
        ports = free_ports(1 + workers + servers)
        counts = {"chief": 1, "worker": workers, "ps": servers}
        self.own = {(job, i): ports.pop() for job, count in counts.items() for i in range(count)}
        self.proxy = tcp_proxy.Proxy()
        self.routes = {task: self.proxy.add_route(f"{task[0]} {task[1]}", lambda port=port: ("127.0.0.1", port), is_local=True)
                       for task, port in self.own.items() if task[0] != "chief"}
        self.proxy.start()
        self.lock, self.is_over, self.num_started, self.num_done = threading.Lock(), False, {}, 0
        self.processes, self.lines, self.threads = {}, [], []
        for task in self.own:
            thread = threading.Thread(target=self.keep, args=(task,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def config(self, task):
        """The own port as it is, all others by the proxy."""
        cluster = {}
        for (job, index), port in sorted(self.own.items()):
            route = self.routes.get((job, index)) if (job, index) != task else None
            cluster.setdefault(job, []).append(f"{route.host}:{route.port}" if route else f"127.0.0.1:{port}")
        return json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})

    def keep(self, task):
        while not self.is_over:
            process = subprocess.Popen(self.program, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       env={**os.environ, "TF_CONFIG": self.config(task),
                                            "TUTTI_RESTART": str(self.num_started.get(task, 0))})
            with self.lock:
                self.processes[task] = process
                self.num_started[task] = self.num_started.get(task, 0) + 1
            for line in process.stdout:
                self.lines.append(f"[{task[0]}-{task[1]}]: {line}")
                found = re.match(r"at (\d+)", line) if task[0] == "chief" else None
                if found:
                    self.num_done = int(found[1])
            if process.wait() == 0 and task[0] == "chief":
                self.is_over = True
            time.sleep(0.05)

    def text(self):
        return "".join(self.lines[-400:])

    def wait_for(self, what, condition):
        end = time.monotonic() + LONGEST
        while not condition():
            require(time.monotonic() < end, f"{what} took longer than {LONGEST} s", self.text())
            time.sleep(0.02)

    def stop(self):
        self.is_over = True
        for _ in range(100):
            with self.lock:
                for process in self.processes.values():
                    if process.poll() is None:
                        process.kill()
            if not any(thread.is_alive() for thread in self.threads):
                break
            time.sleep(0.05)
        self.proxy.stop()


def check_resets(counter, closures, resets, kills, seed=5):
    """With TF_CONFIG: connections are reset in the middle of frames, servers and workers killed."""
    begin = time.monotonic()
    chance = random.Random(seed)
    folder = tempfile.mkdtemp(prefix="tutti_durable_")
    pause_ms = max(1, round(2 * 1000 * (0.3 * resets + 2 * kills) / closures))
    tasks = Tasks([counter, *run_flags(folder, closures, pause_ms)], 2, 2)
    try:
        tasks.wait_for("the first closures", lambda: tasks.num_done > 0 or tasks.is_over)
        kill_at = {round((i + 1) * resets / (kills + 1)) for i in range(kills)}
        num_reset = 0
        for i in range(resets):
            if tasks.is_over:
                break
            damage = tcp_proxy.Damage("reset", chance.randrange(3000))
            num_reset += tasks.proxy.damage_one(chance, damage)
            time.sleep(0.2)
            if i in kill_at:
                task = chance.choice([each for each in tasks.own if each[0] != "chief"])
                with tasks.lock:
                    tasks.processes[task].kill()
                time.sleep(1.0)
        tasks.wait_for("the end", lambda: tasks.is_over)
        text = tasks.text()
    finally:
        tasks.stop()
        shutil.rmtree(folder, ignore_errors=True)
    require(f"counted {closures} of {closures}" in text, "the count is not exact", text)
    require(num_reset >= resets // 2, f"only {num_reset} connections were reset; try more closures", text)
    say(f"{closures} closures, {num_reset} connections reset, {kills} killed, TF_CONFIG", begin)


def check_refusals(counter):
    """What cannot be kept is refused, with what to do."""
    begin = time.monotonic()
    for more, expected in ((["--durability", "logged"], "snapshots.folder"),
                           (["--folder", "/nonexistent_but_not_used"], "durability = Durability::kLogged"),
                           (["--durability", "snapshot"], "expected one of none, logged")):
        ends = Cluster([counter, "--closures", "10", "--join-timeout-s", "5", *more], 1, 1).finish()
        code, text = ends["chief", 0]
        require(code == 1 and expected in text, f"{more}: expected '{expected}'", all_text(ends))
    say("refusals", begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counter")
    parser.add_argument("tutti")
    parser.add_argument("--closures", type=int, default=400)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--resets", type=int, default=12)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    counter, tutti, closures, kills = arguments.counter, arguments.tutti, arguments.closures, arguments.kills
    checks = {
        "logged": lambda: check_kills(tutti, counter, closures, kills, seed=arguments.seed),
        "resets": lambda: check_resets(counter, closures, arguments.resets, 2, seed=arguments.seed),
        "stopped": lambda: check_stopped_server(tutti, counter),
        "recovery": lambda: check_recovery(tutti, counter, kills + 1),
        "large_recovery": lambda: check_large_recovery(tutti, counter, kills),
        "refusals": lambda: check_refusals(counter),
    }
    if arguments.only == "memory":  # a test of its own
        checks = {"memory": lambda: check_memory(tutti, counter)}
    return run_checks(checks, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
