#!/usr/bin/env python3
# Runs between-graph workers as processes: the trainer's modes, the classic flags, and stops of one
# or all workers.
# SPDX-License-Identifier: Apache-2.0
"""Usage: between_graph_test.py TRAINER LOOP TUTTI

TRAINER is examples/between_graph_trainer, LOOP examples/fashion_mnist_custom_loop.
"""
import os
import re
import signal
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import (FLAGS, STOPPED_ON_REQUEST, Tasks, end_with, output_of, parse, require, run_checks, run_launched,  # noqa: E402
                       run_mirrored)

STEPS = 60


class ByFlags(Tasks):
    """Processes started with the flags of the Distributed TensorFlow guide."""

    def __init__(self, trainer, num_workers, *flags):
        super().__init__([trainer, *flags], {"ps": 2, "worker": num_workers})

    def start(self, *task):
        self.more_flags[task] = ["--ps_hosts", ",".join(self.cluster["ps"]), "--worker_hosts", ",".join(self.cluster["worker"]),
                                 "--job_name", task[0], "--task_index", str(task[1])]
        return super().start(*task)

    def own_variables(self, task):
        return {}


def global_step_of(text):
    found = re.search(r"result +global step (\d+), test accuracy ([0-9.]+)", text)
    require(found, "worker 0 reports no result", text)
    return int(found[1])


def check_mode(trainer, num_workers, expect, *flags):
    tasks = ByFlags(trainer, num_workers, "--train_steps", str(STEPS), "--min-accuracy", "0.5", *flags).finish()
    texts = [tasks["worker", worker].text() for worker in range(num_workers)]
    step, own = global_step_of(texts[0]), [int(re.findall(r"step (\d+) done", text)[-1]) for text in texts]
    expect(step, own, texts[0])
    return f"{' '.join(flags) or 'async'}: global step {step}, own steps {own}"


def expect_async(step, own, text):
    # Every step counts once; each worker notices the end at its next read.
    require(STEPS <= step <= STEPS + len(own), f"expected a global step of {STEPS} to {STEPS + len(own)}, got {step}", text)
    require(sum(own) >= step, f"the workers made {own} steps, the servers counted {step}", text)


def expect_together(step, own, text):
    require(step == STEPS and own == [STEPS] * len(own), f"expected {STEPS} global and own steps, got {step} and {own}", text)


def expect_backups(step, own, text):
    # A step needs two gradients, and no worker begins a step after the last one.
    require(step == STEPS and sum(own) >= 2 * STEPS, f"expected {STEPS} global steps and {2 * STEPS} own steps, got {step} and {own}", text)


def check_killed_worker(trainer):
    """Kills a worker; the remaining workers continue."""
    tasks = ByFlags(trainer, 3, "--train_steps", "150")
    tasks["worker", 2].wait_for_line("step")
    tasks.jobs.pop(("worker", 2)).kill()
    step = global_step_of(tasks.finish()["worker", 0].text())
    require(step >= 150, f"the remaining workers ended at step {step}, expected at least 150", tasks.text())


def check_launched(trainer, tutti):
    """Starts the job with one command, which passes the cluster in TF_CONFIG."""
    global_step_of(output_of(tutti, "run", "--workers", "2", "--ps", "2", "--", trainer, "--train_steps", str(STEPS), timeout=600))


def check_same_bits(loop, tutti):
    """SyncReplicas over all workers gives the weights of MirroredStrategy."""
    with tempfile.TemporaryDirectory() as folder:
        # Omits --regularized, because in this mode values that replicas exchange in a step stay
        # within a worker.
        flags = [each for each in FLAGS if each != "--regularized"] + ["--steps", "5"]
        expected = run_mirrored(loop, 2, flags, folder)
        got = run_launched([tutti, "run", "--workers", "2", "--ps", "2", "--"], loop, ["--update-mode", "sync_replicas", *flags], folder,
                           "parameter_server")
    for key in ("weights_hash", "slots_hash"):
        require(got[key] == expected[key], f"{key}: expected {expected[key]} as with MirroredStrategy, got {got[key]}")
    return f"sync_replicas: weights {got['weights_hash']}, as with MirroredStrategy"


def check_stop(loop):
    """Asks one of two workers to stop: both stop after the same step, and the servers end."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints, logs = os.path.join(folder, "checkpoints"), os.path.join(folder, "log")
        tasks = Tasks([loop, "--strategy", "parameter_server", "--devices", "cpu:0", *FLAGS, "--steps", "100000", "--epochs", "1000",
                       "--checkpoint-dir", checkpoints, "--log-dir", logs], {"ps": 1, "worker": 2})
        log = os.path.join(logs, "log.jsonl")
        tasks.wait_for(lambda: os.path.exists(log) and os.path.getsize(log) > 0, "the first step")
        tasks["worker", 1].send(signal.SIGTERM)
        tasks.finish({"ps": 0, "worker": STOPPED_ON_REQUEST})
        require(os.listdir(checkpoints), "the chief saved nothing before it stopped", tasks.text())


def main():
    arguments = parse(__doc__, "trainer", "loop", "tutti")
    trainer, loop, tutti = arguments.trainer, arguments.loop, arguments.tutti
    run_checks({
        "async": lambda: check_mode(trainer, 3, expect_async),
        "sync_replicas, all of 2": lambda: check_mode(trainer, 2, expect_together, "--sync"),
        "sync_replicas, 2 of 3": lambda: check_mode(trainer, 3, expect_backups, "--sync", "--replicas-to-aggregate", "2"),
        "a killed worker": lambda: check_killed_worker(trainer),
        "tutti run": lambda: check_launched(trainer, tutti),
        "same bits": lambda: check_same_bits(loop, tutti),
        "SIGTERM to one worker": lambda: check_stop(loop),
    })


if __name__ == "__main__":
    end_with(main)
