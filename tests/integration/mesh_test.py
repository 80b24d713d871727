#!/usr/bin/env python3
# Kills the processes of a mesh and resumes on a different mesh; the results must be bit-identical to
# those of an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: mesh_test.py GPT TUTTI [--mpirun MPIRUN]

GPT is examples/gpt.
"""
import contextlib
import glob
import os
import signal
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, Job, end_with, parse, require, require_same, run_for_metrics  # noqa: E402

# 3 epochs of 79 steps, with a backup after step 100.
FLAGS = ["--text", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../LICENSE"), "--context", "16", "--layers", "1",
         "--heads", "2", "--features", "16", "--batch-size", "8", "--tokens", "4", "--epochs", "3", "--blocks", "data=2,model=2"]


def killed(command, folder):
    """Kills all processes of a run that has written its first backup."""
    job = Job([*command, "--checkpoint-dir", folder])
    job.wait_for(lambda: glob.glob(os.path.join(folder, "backup", "*", "*.index.json")), "the first backup")
    tasks = job.pids()
    require(len(tasks) == 4, f"expected 4 processes, got {tasks}", job.text())
    for pid in tasks.values():
        with contextlib.suppress(ProcessLookupError):  # the launcher may have ended it
            os.kill(pid, signal.SIGKILL)
    require(job.finish() != 0, "the run ended before it was killed", job.text())


def main():
    given = parse(__doc__, "gpt", "tutti", mpirun=None)

    def run(processes, mesh):
        return [given.tutti, "run", "-n", str(processes), "--", given.gpt, *FLAGS, "--mesh", mesh]

    with tempfile.TemporaryDirectory(prefix="tutti_mesh_") as folder:
        whole = run_for_metrics([given.gpt, *FLAGS, "--mesh", "data=2,model=2"], folder)
        require_same("4 processes", whole, run_for_metrics(run(4, "data=2,model=2"), folder))
        require_same("4 processes over TCP", whole, run_for_metrics([*run(4, "data=2,model=2"), "--transport", "tcp"], folder))
        if given.mpirun:
            command = [given.mpirun, "-n", "4", given.gpt, *FLAGS, "--mesh", "data=2,model=2"]
            require_same("4 processes of mpirun", whole, run_for_metrics(command, folder, environment=MPI))
        for processes, mesh in ((2, "data=1,model=2"), (1, "data=2,model=1")):
            saved = os.path.join(folder, f"saved_{processes}")
            killed(run(4, "data=2,model=2"), saved)
            resumed = run_for_metrics([*run(processes, mesh), "--checkpoint-dir", saved], folder)
            # The resumed process does not know the losses of steps before the backup.
            continued = resumed["losses_hex"].index(next(loss for loss in resumed["losses_hex"] if loss != "nan"))
            require(continued >= 100, f"expected to continue after step 100, got {continued}")
            resumed["losses_hex"][:continued] = whole["losses_hex"][:continued]
            require_same(f"4 processes killed, resumed by {processes} on {mesh}", whole, resumed)


if __name__ == "__main__":
    end_with(main)
