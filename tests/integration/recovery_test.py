#!/usr/bin/env python3
# Kills workers, which the launcher restarts; results must be bit-identical to those of an
# undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recovery_test.py PROGRAM TUTTI FIT [--steps N] [--kills N] [--workers N] [--seed N]

`tutti run --max-restarts` starts the workers. Some are killed during training, and then all at the same time. Without a checkpoint
folder, training begins again; with a folder, training resumes from the newest version. fit_with_kills_test.cc tests fit() without a
launcher.
"""
import glob
import os
import random
import re
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import FLAGS, Job, end_with, load, new_metrics_file, parse, require, require_same, run_mirrored  # noqa: E402

OWN = ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0"]
GOES_ON = "continues after step"


def kill_under_launcher(arguments, program, flags, folder, calm, chance, kills, checkpoints, is_stopped, begun="epoch [12]/"):
    """Kills some workers one after the other, and then all of them; returns the run's output.

    The first kill follows the line `begun`.
    """
    metrics = new_metrics_file(folder)
    saves = ["--checkpoint-dir", checkpoints] if checkpoints else []
    job = Job([arguments.tutti, "run", "-n", str(arguments.workers), "--max-restarts", "100", "--", program, *OWN, *flags, *saves,
               "--metrics-json", metrics])
    job.wait_for_line(begun)
    # A stopped process remains until the launcher kills it to start a new one.
    for number in [signal.SIGKILL] * kills + [signal.SIGSTOP] * is_stopped:
        back = job.count(GOES_ON)
        os.kill(chance.choice(sorted(job.pids(program).values())), number)
        job.wait_for(lambda: job.count(GOES_ON) >= back + arguments.workers, f"a recovery after {signal.Signals(number).name}")
        time.sleep(chance.uniform(0.0, 0.2))
    if checkpoints:
        job.wait_for(lambda: glob.glob(os.path.join(checkpoints, "**", "step_*", "model.safetensors.index.json"), recursive=True), "a checkpoint")
    for pid in job.pids(program).values():
        os.kill(pid, signal.SIGKILL)
    # All processes are dead, so no worker has the state.
    said = "resume from disk, or start over"
    job.wait_for(lambda: job.count(said) >= arguments.workers, said)
    text = job.succeed()
    require_same(f"{kills + arguments.workers} kills under tutti run", calm, load(metrics), text=text)
    return text


def main():
    arguments = parse(__doc__, "program", "tutti", "fit", steps=240, kills=3, workers=3, seed=1)
    chance = random.Random(arguments.seed)
    flags = FLAGS + ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as folder:
        calm = run_mirrored(arguments.program, arguments.workers, flags, folder)
        for kills, checkpoints in ((arguments.kills, None), (1, os.path.join(folder, "checkpoints"))):
            text = kill_under_launcher(arguments, arguments.program, flags, folder, calm, chance, kills, checkpoints, True)
            resumed = max([int(step) for step in re.findall(r"resumed +after step ([0-9]+)", text)], default=0)
            require((resumed > 0) == bool(checkpoints), f"expected a resume from {checkpoints or 'the start'}, got step {resumed}", text)
        # The program does not mention recovery: fit() recovers by itself, and BackupAndRestore
        # resumes training if all workers are killed.
        short = ["--batch-size", "32", "--steps", "400", "--seed", "1", "--test-examples", "1000"]
        calm = run_mirrored(arguments.fit, arguments.workers, short, folder)
        text = kill_under_launcher(arguments, arguments.fit, short, folder, calm, chance, 2, os.path.join(folder, "of-fit"), False,
                                   begun="Total params")
        require("BackupAndRestore: resuming after a total of" in text, "expected BackupAndRestore to resume training", text)


if __name__ == "__main__":
    end_with(main)
