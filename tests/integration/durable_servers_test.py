#!/usr/bin/env python3
# Kills workers, servers and the coordinator at random, and resets connections; counts must be
# exact.
# SPDX-License-Identifier: Apache-2.0
"""Usage: durable_servers_test.py COUNTER TUTTI [--closures N] [--kills N] [--resets N] [--seed N] [--only NAMES]

COUNTER is coordinated_counter.
"""
import json
import os
import random
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
import tcp_proxy  # noqa: E402
from coordinator_test import LONG_ENOUGH, Launch  # noqa: E402
from processes import Tasks, end_with, parse, require, run_checks  # noqa: E402
from strangers_test import resident_mib  # noqa: E402

JOBS = ("ps", "worker", "chief", "ps", "worker")  # jobs to kill, in rotation; task and time are random
MOST_QUEUED = 4000  # closures that a coordinator's queue can hold at once; progress is printed only after all are scheduled
GOAL = 0.5  # seconds; printed next to the measurement, but not checked, because other programs use the CPU, too
LARGE = ["--ballast-mib", "96"]  # 100 MB of float32 on two servers, with changes of 64 KiB


def run_flags(folder, closures, pause_ms, interval_ms=300):
    return ["--closures", str(closures), "--pause-ms", str(pause_ms), "--folder", folder, "--interval-ms", str(interval_ms)]


def launch(tutti, workers, program):
    return Launch(tutti, ["--chief", "--workers", str(workers), "--ps", "2", "--max-restarts", "1000"], program)


def all_are_here(job, now):
    """Returns true if training is running and every process has run for a while."""
    return job.num_done() > 0 and all(now - since > LONG_ENOUGH for _, since in job.tasks().values())


def check_kills(tutti, counter, closures, kills, seed):
    """Each closure counts once, no matter which process is killed and when."""
    chance, killed = random.Random(seed), []
    # Leaves enough time for every kill, and for restarted processes to run a while before the next
    # kill, even on a busy machine.
    pause_ms = max(1, round(3 * 1000 * 3.5 * kills / closures))
    with tempfile.TemporaryDirectory(prefix="tutti_durable_") as folder:
        job = launch(tutti, 3, [counter, *run_flags(folder, closures, pause_ms)])
        for number in range(kills):
            time.sleep(chance.random() * 0.5)
            killed.append(job.kill_some(chance, JOBS[number % len(JOBS)], lambda now: all_are_here(job, now)))
            require(killed[-1], f"only {number} processes were killed; try more closures", job.text())
        job.require_count(closures)
    return f"{closures} closures, killed: " + ", ".join(f"{name} {index}" for name, index in killed)


def check_stopped_server(tutti, counter):
    """Stops a server: the job declares it lost, the launcher kills it, and a new process replaces it."""
    with tempfile.TemporaryDirectory(prefix="tutti_durable_") as folder:
        job = launch(tutti, 2, [counter, *run_flags(folder, 600, 10)])
        time.sleep(LONG_ENOUGH)
        job.send(signal.SIGSTOP, ("ps", 1))
        job.require_count(600)
    require(job.count(r"ps 1 \(.*\) is stopped: state T"), "expected a line that says that ps 1 is stopped", job.text())
    require(job.count(r"\[chief-0\]: started") == 1, "the chief was started again", job.text())


def recovery_of_one(job, victim):
    """Kills ps `victim`. Returns the seconds until its new process runs, until all servers'
    state is restored, and until the next ten closures are finished."""
    begin = job.send(signal.SIGKILL, ("ps", victim))
    process = job.wait_for_line(rf"task ps {victim} pid", begin)
    state = job.wait_for_line(r"restored all servers from the checkpoint taken after", begin)
    step = job.wait_for_line(r"\[chief-0\]: at \d+", state.time)  # a line every ten closures
    return process.time - begin, state.time - begin, step.time - begin


def check_recovery(tutti, counter, closures, kills, more=(), ends=False):
    """Measures the outage after a server is killed. Requires that all processes return and, with
    `ends`, that all closures are counted."""
    with tempfile.TemporaryDirectory(prefix="tutti_durable_") as folder:
        job = launch(tutti, 2, [counter, *run_flags(folder, closures, 6, interval_ms=2000), *more])
        times = []
        for i in range(kills):
            job.wait_for(lambda: all_are_here(job, time.monotonic()), "progress with all processes running")
            times.append(recovery_of_one(job, i % 2))
        if ends:
            job.require_count(closures)
        else:
            job.send(signal.SIGTERM)
            job.finish()
    columns = [sorted(column) for column in zip(*times)]
    print(f"  recovery of a killed server {' '.join(more)}, median (worst) in s: restarted, restored, next closures finished (goal {GOAL})\n"
          "    " + "".join(f"{column[len(column) // 2]:7.2f} ({column[-1]:.2f})" for column in columns), flush=True)


def check_killed_at_end(tutti, counter):
    """Kills the chief after all closures are counted and the other processes have ended: all are restarted, and the job succeeds."""
    with tempfile.TemporaryDirectory(prefix="tutti_durable_") as folder:
        job = launch(tutti, 2, [counter, *run_flags(folder, 100, 1), "--linger-ms", "3000"])
        left = job.wait_for_line(r"\[chief-0\]: left")
        time.sleep(0.5)
        job.send(signal.SIGKILL, ("chief", 0))
        job.wait_for_line(r"\[chief-0\]: left", left.time + 0.1)
        job.require_count(100)
    require(job.count(r"\[chief-0\]: started") == 2, "the chief was not started again", job.text())


def check_memory(tutti, counter):
    """Variables are stored only on the servers, apart from initial values, which every task creates. Variables survive a worker's death."""
    closures, ballast = 400, 192
    job = launch(tutti, 2, [counter, "--closures", str(closures), "--pause-ms", "10", "--ballast-mib", str(ballast)])
    job.wait_for(lambda: job.num_done() >= closures // 4, "a quarter of the closures")
    own = {task: resident_mib(pid, "RssAnon") for task, (pid, _) in job.tasks().items() if task[0] != "chief"}
    require(job.kill_some(random.Random(3), "worker", lambda _: True), "no worker was killed", job.text())
    job.require_count(closures)
    shown = ", ".join(f"{name} {index} {mib:.0f} MiB" for (name, index), mib in sorted(own.items()))
    workers = max(mib for (name, _), mib in own.items() if name == "worker")
    require(all(mib > workers + ballast / 2 for (name, _), mib in own.items() if name == "ps"),
            f"expected {ballast // 2} MiB more on each server than on a worker, got {shown}")
    return f"{ballast} MiB of variables: {shown}"


class ByProxy(Tasks):
    """Tasks with TF_CONFIG whose connections to servers and workers pass through a proxy; dead tasks are restarted."""

    def __init__(self, command, counts):
        self.proxy, self.routes = tcp_proxy.Proxy(), {}
        super().__init__(command, counts, is_restarted=True)
        self.proxy.start()

    def own_variables(self, task):
        """Returns environment variables in which all other servers and workers have the proxy's ports."""
        if not self.routes:
            for job, addresses in self.cluster.items():
                for index, address in enumerate(addresses):
                    if job != "chief":
                        target = ("127.0.0.1", int(address.rpartition(":")[2]))
                        self.routes[job, index] = self.proxy.add_route(f"{job} {index}", lambda target=target: target, is_local=True)
        config = json.loads(super().own_variables(task)["TF_CONFIG"])
        for (job, index), route in self.routes.items():
            if (job, index) != task:
                config["cluster"][job][index] = f"{route.host}:{route.port}"
        return {"TF_CONFIG": json.dumps(config), "TUTTI_RESTART": str(self.starts[task])}

    def look(self):
        """Restarts dead tasks; returns true once the chief has ended with 0."""
        for task, job in list(self.jobs.items()):
            if job.process.poll() not in (None, 0):
                self.start(*task)
        return self["chief", 0].process.poll() == 0

    def wait(self, seconds, condition=lambda: False):
        end = time.monotonic() + seconds
        while not self.look() and not condition() and time.monotonic() < end:
            time.sleep(0.02)


def check_resets(counter, closures, resets, kills, seed=5):
    """In a job started with TF_CONFIG, resets connections in the middle of frames, and kills servers and workers."""
    chance, num_reset = random.Random(seed), 0
    pause_ms = max(1, round(2 * 1000 * (0.3 * resets + 2 * kills) / closures))
    kill_at = {round((i + 1) * resets / (kills + 1)) for i in range(kills)}
    with tempfile.TemporaryDirectory(prefix="tutti_durable_") as folder:
        tasks = ByProxy([counter, *run_flags(folder, closures, pause_ms)], {"chief": 1, "worker": 2, "ps": 2})
        tasks.wait(240, lambda: tasks["chief", 0].find_line(r"^at \d+"))
        for i in range(resets):
            if tasks.look():
                break
            num_reset += tasks.proxy.damage_one(chance, tcp_proxy.Damage("reset", chance.randrange(3000)))
            tasks.wait(0.2)
            if i in kill_at:
                tasks[chance.choice([each for each in tasks.jobs if each[0] != "chief"])].process.kill()
                tasks.wait(1.0)
        tasks.wait(240)
        tasks["chief", 0].succeed(f"counted {closures} of {closures}")
        tasks.kill()
        tasks.proxy.stop()
    require(num_reset >= resets // 2, f"only {num_reset} connections were reset; try more closures", tasks.text())
    return f"{closures} closures, {num_reset} connections reset, {kills} killed, TF_CONFIG"


def main():
    arguments = parse(__doc__, "counter", "tutti", closures=400, kills=3, resets=12, seed=11, only="")
    counter, tutti, closures, kills = arguments.counter, arguments.tutti, arguments.closures, arguments.kills
    checks = {
        "kills": lambda: check_kills(tutti, counter, closures, kills, arguments.seed),
        "resets": lambda: check_resets(counter, closures, arguments.resets, 2, arguments.seed),
        "stopped": lambda: check_stopped_server(tutti, counter),
        "killed_at_end": lambda: check_killed_at_end(tutti, counter),
        "recovery": lambda: check_recovery(tutti, counter, MOST_QUEUED, kills + 1),
        "large_recovery": lambda: check_recovery(tutti, counter, 400 * kills, kills, LARGE, ends=True),
    }
    if arguments.only == "memory":  # tested separately
        checks = {"memory": lambda: check_memory(tutti, counter)}
    run_checks(checks, arguments.only)


if __name__ == "__main__":
    end_with(main)
