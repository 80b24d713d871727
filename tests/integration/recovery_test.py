#!/usr/bin/env python3
# Kills workers in the middle of training and starts them again: the bits of the calm run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recovery_test.py PROGRAM [--steps N] [--kills N] [--workers N] [--seed N] [--tutti TUTTI [--fit PROGRAM]]

A worker is killed (SIGKILL) at a random moment between two reports of progress, and started again as a launcher would.
Worker 0 hosts the control server and is spared. With --tutti the workers are started by `tutti run --max-restarts`, which hosts the
server; then any of them is killed, and all at once: without a folder of checkpoints they begin anew, with one they go on from the
newest version in it.
"""
import argparse
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import multi_worker_test as workers_of  # noqa: E402

MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "0",
               "OMPI_MCA_btl_base_warn_component_unused": "0", "ASAN_OPTIONS": "detect_leaks=0"}


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


class Launched:
    """Workers that `tutti run` starts, and starts again when they are killed."""

    def __init__(self, arguments, program, flags, folder):
        self.program, self.num_workers = program, arguments.workers
        self.metrics, self.log = os.path.join(folder, "launched.json"), os.path.join(folder, "launcher.log")
        command = [arguments.tutti, "run", "-n", str(arguments.workers), "--max-restarts", "100", "--", program,
                   "--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--metrics-json", self.metrics] + flags
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as lines:
            return lines.read()

    def fail(self, what):
        self.process.kill()
        sys.exit(f"FAILED under the launcher: {what}\n{self.text()[-5000:]}")

    def wait_for(self, condition, what, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                self.fail(f"{what} ({self.process.poll()})")
            time.sleep(0.01)

    def hit_one(self, chance, number, what):
        """Sends a signal to one of them; returns when all have gone on after it."""
        back = self.text().count("goes on after step")
        os.kill(chance.choice(pids_of_workers(self.process.pid, self.program)), number)
        self.wait_for(lambda: self.text().count("goes on after step") >= back + self.num_workers, f"no recovery of {what}")

    def kill_all(self):
        """No worker has the state then, so they begin with the disk, or anew."""
        for pid in pids_of_workers(self.process.pid, self.program):
            os.kill(pid, signal.SIGKILL)
        said = "begin with what is on the disk, or anew"
        self.wait_for(lambda: self.text().count(said) >= self.num_workers, "nobody begins anew")

    def compare(self, calm, more_differing=()):
        """When it has ended."""
        self.wait_for(lambda: self.process.poll() == 0, "the run does not end", 300)
        with open(self.metrics, encoding="utf-8") as file:
            got = json.load(file)
        differing = [key for key in workers_of.COMPARED if calm[key] != got[key]] + list(more_differing)
        if differing:
            self.fail(f"different: {', '.join(differing)}")
        return f"  same      {got['weights_hash']}  %s under tutti run in {got['steps']} steps"


def kill_custom_loop(arguments, flags, calm, folder, chance, kills, checkpoints=None):
    """Kills any of the workers, then all at once."""
    if checkpoints:
        flags = flags + ["--checkpoint-dir", checkpoints]
    run = Launched(arguments, arguments.program, flags, folder)
    run.wait_for(lambda: "epoch 2/" in run.text(), "training never began")
    for kill in range(kills):
        run.hit_one(chance, signal.SIGKILL, f"kill {kill + 1}")
        time.sleep(chance.uniform(0.0, 0.2))
    # A stopped process stays: the launcher makes room for a new one.
    run.hit_one(chance, signal.SIGSTOP, "a stop")
    if checkpoints:
        run.wait_for(lambda: glob.glob(os.path.join(checkpoints, "step_*", "manifest.json")), "nothing is saved")
    run.kill_all()
    run.wait_for(lambda: run.process.poll() == 0, "the run does not end", 300)
    resumed = [int(step) for step in re.findall(r"resumed +after step ([0-9]+)", run.text())]
    as_expected = max(resumed, default=0) > 0 if checkpoints else not resumed
    same = run.compare(calm, () if as_expected else [f"the steps gone on from: {resumed}"])
    print(same % f"{kills + arguments.workers} kills" + (f", on from step {resumed[-1]}" if checkpoints else ""), flush=True)


def kill_fit(arguments, folder, chance):
    """The same program text as without recovery: fit() does it, and BackupAndRestore when all are killed."""
    flags = ["--batch-size", "32", "--steps", "400", "--seed", "1", "--test-examples", "1000"]
    calm = workers_of.run_mirrored(arguments.fit, arguments.workers, flags, folder)
    checkpoints = os.path.join(folder, "of-fit")
    run = Launched(arguments, arguments.fit, flags + ["--checkpoint-dir", checkpoints], folder)
    run.wait_for(lambda: "epoch 1/" in run.text(), "training never began")
    for kill in range(2):
        run.hit_one(chance, signal.SIGKILL, f"kill {kill + 1} in fit")
    run.wait_for(lambda: glob.glob(os.path.join(checkpoints, "backup", "step_*", "manifest.json")), "nothing is saved")
    run.kill_all()
    run.wait_for(lambda: run.process.poll() == 0, "the run does not end", 300)
    same = run.compare(calm, () if "BackupAndRestore: goes on after batch" in run.text() else ["no backup is taken"])
    print(same % f"{2 + arguments.workers} kills in fit", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tutti")
    parser.add_argument("--fit")
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
            longer = workers_of.FLAGS + ["--steps", str(2 * arguments.steps)]
            calm = workers_of.run_mirrored(arguments.program, arguments.workers, longer, folder)
            kill_custom_loop(arguments, longer, calm, folder, chance, arguments.kills)
            kill_custom_loop(arguments, longer, calm, folder, chance, 1, os.path.join(folder, "checkpoints"))
            if arguments.fit:
                kill_fit(arguments, folder, chance)


if __name__ == "__main__":
    main()
