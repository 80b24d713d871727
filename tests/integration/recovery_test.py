#!/usr/bin/env python3
# Kills workers in the middle of training and starts them again: the bits of the calm run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recovery_test.py PROGRAM [--steps N] [--kills N] [--workers N] [--seed N] [--tutti TUTTI]

A worker is killed (SIGKILL) at a random moment between two reports of progress, and started again as a launcher would.
Worker 0 hosts the control server and is spared. With --tutti the workers are started by `tutti run --max-restarts`, which hosts the
server; then any of them is killed.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import multi_worker_test as workers_of  # noqa: E402


class Worker:
    """One task of the cluster, as a process that can be killed and started again."""

    def __init__(self, program, flags, index, addresses, folder):
        self.program, self.flags, self.index, self.addresses = program, flags, index, addresses
        self.log = os.path.join(folder, f"worker-{index}.log")
        self.restarts = -1
        self.start()

    def start(self):
        self.restarts += 1
        tf_config = {"cluster": {"worker": self.addresses}, "task": {"type": "worker", "index": self.index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(tf_config), "TUTTI_RESTART": str(self.restarts),
                       "TUTTI_MAX_RESTARTS": "1000"}
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen([self.program] + self.flags, stdout=log, stderr=log, env=environment)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()


def fail(workers, message):
    for worker in workers:
        worker.process.kill()
    sys.exit(message + "".join(f"\n--- worker {w.index}\n{w.text()[-3000:]}" for w in workers))


def wait_until(condition, workers, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            fail(workers, f"FAILED: {what}")
        for worker in workers:
            if worker.process.poll() not in (None, 0):
                fail(workers, f"FAILED: worker {worker.index} ended with {worker.process.returncode}")
        time.sleep(0.01)


def pids_of_workers(launcher, program):
    """The children of a process that run the program."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                is_worker = line.read().split("\0")[0] == program
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher and is_worker:
            found.append(int(name))
    return found


def kill_under_launcher(arguments, flags, calm, folder, chance):
    """Kills any of the workers that a launcher runs; compares what they reach with a calm run."""
    metrics, log = os.path.join(folder, "launched.json"), os.path.join(folder, "launcher.log")
    command = [arguments.tutti, "run", "-n", str(arguments.workers), "--max-restarts", "100", "--", arguments.program,
               "--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--metrics-json", metrics] + flags
    with open(log, "w", encoding="utf-8") as out:
        launcher = subprocess.Popen(command, stdout=out, stderr=out)

    def text():
        with open(log, encoding="utf-8", errors="replace") as lines:
            return lines.read()

    def wait_for(condition, what, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or launcher.poll() not in (None, 0):
                launcher.kill()
                sys.exit(f"FAILED under the launcher: {what} ({launcher.poll()})\n{text()[-5000:]}")
            time.sleep(0.01)

    wait_for(lambda: "epoch 2/" in text(), "training never began")
    for kill in range(arguments.kills):
        back = text().count("goes on after step")
        victims = pids_of_workers(launcher.pid, arguments.program)
        os.kill(chance.choice(victims), signal.SIGKILL)
        wait_for(lambda: text().count("goes on after step") >= back + arguments.workers, f"no recovery of kill {kill + 1}")
        time.sleep(chance.uniform(0.0, 0.2))
    # A stopped process stays: the launcher makes room for a new one.
    back = text().count("goes on after step")
    os.kill(chance.choice(pids_of_workers(launcher.pid, arguments.program)), signal.SIGSTOP)
    wait_for(lambda: text().count("goes on after step") >= back + arguments.workers, "no recovery of a stop")
    # All at once: nobody has the state then, so they begin with the disk (here: anew).
    for pid in pids_of_workers(launcher.pid, arguments.program):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: text().count("begin with what is on the disk, or anew") >= arguments.workers, "nobody begins anew")
    wait_for(lambda: launcher.poll() == 0, "the run does not end", 300)
    with open(metrics, encoding="utf-8") as file:
        got = json.load(file)
    differing = [key for key in workers_of.COMPARED if calm[key] != got[key]]
    if differing:
        sys.exit(f"FAILED: after {arguments.kills} kills under the launcher different: {', '.join(differing)}\n{text()[-5000:]}")
    print(f"  same      {got['weights_hash']}  {arguments.kills} kills under tutti run in {got['steps']} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tutti")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    flags = workers_of.FLAGS + ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as folder:
        calm = workers_of.run_mirrored(arguments.program, arguments.workers, flags, folder)
        metrics = os.path.join(folder, "metrics.json")
        own = flags + ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--metrics-json", metrics]
        addresses = [f"127.0.0.1:{port}" for port in workers_of.free_ports(arguments.workers)]
        workers = [Worker(arguments.program, own, i, addresses, folder) for i in range(arguments.workers)]
        for kill in range(arguments.kills):
            back = sum("goes on after step" in line for line in workers[0].text().splitlines())
            wait_until(lambda: f"epoch {kill + 1}/" in workers[0].text(), workers, f"epoch {kill + 1} never began")
            time.sleep(chance.uniform(0.0, 0.3))
            victim = workers[chance.randrange(1, arguments.workers)]
            begin = time.monotonic()
            victim.kill()
            victim.start()
            wait_until(lambda: workers[0].text().count("goes on after step") > back, workers, "no recovery")
            print(f"  worker {victim.index} killed, back in {time.monotonic() - begin:.2f} s", flush=True)
        wait_until(lambda: all(w.process.poll() == 0 for w in workers), workers, "the run does not end", 300)
        with open(metrics, encoding="utf-8") as file:
            got = json.load(file)
        differing = [key for key in workers_of.COMPARED if calm[key] != got[key]]
        if differing:
            fail(workers, f"FAILED: after {arguments.kills} kills different: {', '.join(differing)}")
        print(f"  same      {got['weights_hash']}  {arguments.kills} kills in {got['steps']} steps")
        if arguments.tutti:
            longer = workers_of.FLAGS + ["--steps", str(5 * arguments.steps)]
            calm = workers_of.run_mirrored(arguments.program, arguments.workers, longer, folder)
            kill_under_launcher(arguments, longer, calm, folder, chance)


if __name__ == "__main__":
    main()
