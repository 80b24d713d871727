#!/usr/bin/env python3
# Workers that train apart, as processes: the modes of the trainer, the classic flags, agreed and single stops.
# SPDX-License-Identifier: Apache-2.0
"""Usage: between_graph_test.py TRAINER LOOP TUTTI

TRAINER is examples/between_graph_trainer, LOOP examples/fashion_mnist_custom_loop.
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

from multi_worker_test import FLAGS, free_ports, run_mirrored

STEPS = 60


def fail(message, outputs=()):
    sys.exit(f"FAILED: {message}\n" + "\n".join(f"--- {task}\n{text}" for task, text in outputs))


class Cluster:
    """One process per task, started with the flags of the Distributed TensorFlow guide."""

    def __init__(self, trainer, num_ps, num_workers, flags):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(num_ps + num_workers)]
        hosts = ["--ps_hosts", ",".join(addresses[:num_ps]), "--worker_hosts", ",".join(addresses[num_ps:])]
        self.tasks = [("ps", i) for i in range(num_ps)] + [("worker", i) for i in range(num_workers)]
        self.processes = {}
        self.lines = {task: [] for task in self.tasks}
        self.threads = []
        for job, index in self.tasks:
            process = subprocess.Popen(
                [trainer, *hosts, "--job_name", job, "--task_index", str(index), *flags], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.processes[job, index] = process
            thread = threading.Thread(target=self.read, args=((job, index), process))
            thread.start()
            self.threads.append(thread)

    def read(self, task, process):
        for line in process.stdout:
            self.lines[task].append(line)

    def text(self, task):
        return "".join(self.lines[task])

    def outputs(self):
        return [(f"{job} {index}", self.text((job, index))) for job, index in self.tasks]

    def wait(self, seconds=240):
        """Every process must end with 0 by itself."""
        deadline = time.monotonic() + seconds
        for task, process in self.processes.items():
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                for other in self.processes.values():
                    other.kill()
                fail(f"{task} did not end", self.outputs())
        for thread in self.threads:
            thread.join()
        failed = {task: process.returncode for task, process in self.processes.items() if process.returncode != 0}
        if failed:
            fail(f"exit codes {failed}", self.outputs())


def global_step_of(text):
    found = re.search(r"result +global step (\d+), test accuracy ([0-9.]+)", text)
    return (int(found[1]), float(found[2])) if found else (None, None)


def steps_of(text):
    """Steps that a worker made itself."""
    return [int(each) for each in re.findall(r"step (\d+) done", text)][-1]


def check_mode(trainer, name, num_workers, flags, expect):
    cluster = Cluster(trainer, 2, num_workers, ["--train_steps", str(STEPS), "--min-accuracy", "0.5", *flags])
    cluster.wait()
    step, accuracy = global_step_of(cluster.text(("worker", 0)))
    own = [steps_of(cluster.text(("worker", w))) for w in range(num_workers)]
    if step is None:
        fail(f"{name}: worker 0 tells of no result", cluster.outputs())
    problem = expect(step, own, cluster.text(("worker", 0)))
    if problem:
        fail(f"{name}: {problem}", cluster.outputs())
    print(f"  {name}: global step {step}, own steps {own}, accuracy {accuracy:.2f}", flush=True)


def expect_async(step, own, text):
    # Every step counts once; a worker sees the end at its next read.
    if not STEPS <= step <= STEPS + len(own):
        return f"expected a global step of {STEPS} to {STEPS + len(own)}, got {step}"
    if sum(own) < step:
        return f"the workers made {own} steps, the servers counted {step}"
    late = re.search(r"of gradients: (.*)", text)
    return None if late and late[1] != "none" else "expected a histogram of staleness"


def expect_bounded(step, own, text):
    lead = re.search(r"of reads: (.*)", text)
    if not lead or lead[1] == "none":
        return "expected a histogram of leads"
    if max(int(each.split(":")[0]) for each in lead[1].split(", ")) > 1:
        return f"a read was further ahead than 1: {lead[1]}"
    return expect_async(step, own, text)


def expect_together(step, own, text):
    if step != STEPS or own != [STEPS] * len(own):
        return f"expected {STEPS} steps of all, got {step} and {own}"
    return None if "dropped    0 " in text else "expected that no gradient is dropped"


def expect_backups(step, own, _):
    # Two gradients make a step, and nobody begins one after the last.
    return None if step == STEPS and sum(own) >= 2 * STEPS else f"expected {STEPS} steps, got {step} and {own}"


def check_killed_worker(trainer):
    """The others go on as soon as the servers know that a worker is gone."""
    cluster = Cluster(trainer, 2, 3, ["--train_steps", "150", "--update-mode", "ssp", "--staleness", "2"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "step" not in cluster.text(("worker", 2)):
        time.sleep(0.05)
    cluster.processes["worker", 2].kill()
    begin = time.monotonic()
    cluster.processes["worker", 2].wait()
    del cluster.processes["worker", 2]
    cluster.wait()
    step, _ = global_step_of(cluster.text(("worker", 0)))
    if step is None or step < 150:
        fail(f"a killed worker: the others ended at step {step}", cluster.outputs())
    print(f"  a killed worker: the others ended after {time.monotonic() - begin:.1f} s", flush=True)


def check_launched(trainer, tutti):
    """In one command; the cluster comes by TF_CONFIG."""
    command = [tutti, "run", "--workers", "2", "--ps", "2", "--", trainer, "--train_steps", str(STEPS)]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    if result.returncode != 0 or global_step_of(result.stdout)[0] is None:
        fail(f"({result.returncode}) {' '.join(command)}", [("output", result.stdout)])
    print("  tutti run: one command", flush=True)


def check_same_bits(loop, tutti):
    """SyncReplicas of all workers gives the weights of MirroredStrategy."""
    with tempfile.TemporaryDirectory() as folder:
        # Without --regularized: what replicas exchange in a step stays within a worker.
        flags = [each for each in FLAGS if each != "--regularized"] + ["--steps", "5"]
        expected = run_mirrored(loop, 2, flags, folder)
        metrics = os.path.join(folder, "replicas.json")
        command = [tutti, "run", "--workers", "2", "--ps", "2", "--", loop, "--strategy", "parameter_server",
                   "--update-mode", "sync_replicas", "--devices", "cpu:0", "--metrics-json", metrics, *flags]
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
        if result.returncode != 0:
            fail(f"({result.returncode}) {' '.join(command)}", [("output", result.stdout)])
        with open(metrics, encoding="utf-8") as file:
            got = json.load(file)
    for key in ("weights_hash", "slots_hash"):
        if got[key] != expected[key]:
            fail(f"sync_replicas: {key} is {got[key]}, of MirroredStrategy {expected[key]}")
    print(f"  sync_replicas: weights {got['weights_hash']}, as MirroredStrategy", flush=True)


def check_stop(loop):
    """One of two workers is told to end; both stop after the same step, and the servers end."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        cluster = {"worker": addresses[:2], "ps": addresses[2:]}
        processes = {}
        for job, index in (("ps", 0), ("worker", 0), ("worker", 1)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            processes[job, index] = subprocess.Popen(
                [loop, "--strategy", "parameter_server", "--devices", "cpu:0", *FLAGS, "--steps", "100000",
                 "--epochs", "1000", "--checkpoint-dir", os.path.join(folder, "checkpoints"), "--metrics-json",
                 os.path.join(folder, f"{job}{index}.json"), "--log-dir", os.path.join(folder, "log")],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "TF_CONFIG": json.dumps(config)})
        log = os.path.join(folder, "log", "log.jsonl")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (os.path.exists(log) and os.path.getsize(log) > 0):
            time.sleep(0.1)  # until steps are made
        processes["worker", 1].send_signal(signal.SIGTERM)
        outputs = []
        for (job, index), process in processes.items():
            try:
                outputs.append((f"{job} {index}", process.communicate(timeout=600)[0]))
            except subprocess.TimeoutExpired:
                for other in processes.values():
                    other.kill()
                fail(f"{job} {index} did not stop with worker 1", outputs)
        codes = {f"{job} {index}": process.returncode for (job, index), process in processes.items()}
        if codes != {"ps 0": 0, "worker 0": 75, "worker 1": 75}:
            fail(f"exit codes {codes}; expected 75 of both workers", outputs)
        if not os.listdir(os.path.join(folder, "checkpoints")):
            fail("the chief saved nothing before it stopped", outputs)
    print("  SIGTERM to one worker: both stopped, and the server", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer")
    parser.add_argument("loop")
    parser.add_argument("tutti")
    arguments = parser.parse_args()
    trainer = arguments.trainer
    check_mode(trainer, "async", 3, [], expect_async)
    check_mode(trainer, "ssp, staleness 1", 2, ["--update-mode", "ssp", "--staleness", "1"], expect_bounded)
    check_mode(trainer, "sync_replicas, all of 2", 2, ["--sync"], expect_together)
    check_mode(trainer, "sync_replicas, 2 of 3", 3, ["--sync", "--replicas-to-aggregate", "2"], expect_backups)
    check_killed_worker(trainer)
    check_launched(trainer, arguments.tutti)
    check_same_bits(arguments.loop, arguments.tutti)
    check_stop(arguments.loop)
    print("all as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
