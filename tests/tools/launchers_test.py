#!/usr/bin/env python3
# Starts the same program with `tutti run` and by hand, and `tutti cluster` under mpirun: each
# process must find its rank and the other workers.
# SPDX-License-Identifier: Apache-2.0
"""Usage: launchers_test.py PROGRAM_TUTTI PROGRAM_SUM_OF_WORKERS"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import counted_unittest  # noqa: E402
from processes import Tasks  # noqa: E402

TUTTI = os.path.abspath(sys.argv.pop(1))
PROGRAM = os.path.abspath(sys.argv.pop(1))
LIMIT = 600
LAUNCHERS = ("OMPI_", "PMI", "SLURM_", "TF_CONFIG", "TUTTI_")
for each in [name for name in os.environ if name.startswith(LAUNCHERS)]:
    del os.environ[each]


def sums(output):
    """Returns {"worker 1": "of 3: sum 6"}, and the job's id."""
    found = re.findall(r"^(?:\[[a-z]+-\d+\]: |\d+: )?((?:worker|chief) \d+) (of \d+: sum \d+) in job (.*)$", output,
                       re.MULTILINE)
    return {name: what for name, what, _ in found}, {job for _, _, job in found}


class Launchers(unittest.TestCase):
    def tutti_run(self, *words, code=0, **more):
        result = subprocess.run([TUTTI, "run", *words], text=True, capture_output=True, timeout=LIMIT, **more)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def test_tutti_run_connects_workers(self):
        for control in ("grpc", "none"):  # the launcher or worker 0 hosts the control server
            found, jobs = sums(self.tutti_run("-n", "3", "--control", control, "--", PROGRAM).stdout)
            self.assertEqual(found, {f"worker {i}": "of 3: sum 6" for i in range(3)})
            self.assertEqual(len(jobs), 1)

    def test_tutti_run_connects_chief_and_workers(self):
        result = self.tutti_run("-n", "2", "--chief", "--", PROGRAM)
        self.assertEqual(sums(result.stdout)[0], {"chief 0": "of 2: sum 3", "worker 0": "of 2: sum 3"})

    def test_killed_worker_is_named_by_launcher(self):
        result = self.tutti_run("-n", "3", "--", PROGRAM, "worker 1", code=128 + 9)
        own = [line for line in result.stderr.splitlines() if line.startswith("tutti run:")]
        self.assertRegex(own[0], r"^tutti run: worker-1 failed first: killed by signal 9 \(SIGKILL\) after")

    def test_worker_that_dies_before_connecting_is_restarted_and_connected(self):
        # Runs the job several times, because a race could make the restarted process and the other
        # workers wait for each other.
        for _ in range(3):
            result = self.tutti_run("-n", "3", "--max-restarts", "20", "--", PROGRAM, "worker 1")
            self.assertEqual(sums(result.stdout)[0], {f"worker {i}": "of 3: sum 6" for i in range(3)})

    def test_handwritten_tf_config_connects_workers(self):
        tasks = Tasks([PROGRAM], {"worker": 3}).finish()
        output = "".join(job.text() for job in tasks.jobs.values())
        self.assertEqual(sums(output)[0], {f"worker {i}": "of 3: sum 6" for i in range(3)})

    def test_file_size_limit_does_not_end_workers(self):
        # Shared memory consists of files, to which the limit also applies. A file has 16 GiB if the
        # limit permits that size.
        for limit in (100 << 10, 1 << 30, 8 << 30):
            with self.subTest(limit=limit):
                result = self.tutti_run("-v", "-n", "2", "--", PROGRAM,
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                self.assertEqual(sums(result.stdout)[0], {f"worker {i}": "of 2: sum 3" for i in range(2)})
                way = "shared memory" if limit > 1 << 20 else "tcp"
                self.assertRegex(result.stderr, rf"rank 0 of 2: rank 1: {way} ")
                self.assertEqual("uses only TCP: shm: " in result.stderr, way == "tcp", result.stderr)

    def test_log_file_at_size_limit_does_not_end_worker(self):
        config = {"cluster": {"worker": ["127.0.0.1:4000"]}, "task": {"type": "worker", "index": 0}}
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            with open(log, "w", encoding="utf-8") as file:
                result = subprocess.run([PROGRAM], text=True, stdout=subprocess.PIPE, stderr=file, timeout=LIMIT,
                                        env={**os.environ, "TF_CONFIG": json.dumps(config), "TUTTI_LOG_LEVEL": "info"},
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)))
            self.assertEqual((result.returncode, log.stat().st_size), (0, 20))
        self.assertEqual(sums(result.stdout)[0], {"worker 0": "of 1: sum 1"})


class Mpirun(unittest.TestCase):
    def test_mpirun_ranks_are_detected(self):
        with tempfile.TemporaryDirectory() as folder:
            command = f"{TUTTI} cluster --json > {folder}/$OMPI_COMM_WORLD_RANK"
            result = subprocess.run(["mpirun", "--oversubscribe", "-n", "3", "sh", "-c", command], text=True,
                                    capture_output=True, timeout=LIMIT,
                                    env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
            self.assertEqual(result.returncode, 0, result.stderr)
            reports = [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(3)]
        self.assertEqual({report["resolver"] for report in reports}, {"MPI"})
        self.assertEqual([report["task"]["index"] for report in reports], [0, 1, 2])
        self.assertEqual(len({report["job_id"] for report in reports}), 1)


if __name__ == "__main__":
    counted_unittest.main(apart=["Mpirun"])
