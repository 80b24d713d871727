#!/usr/bin/env python3
# Tests examples/clusters/slurm.sbatch, `tutti cluster` and `tutti run` under a private Slurm with
# one node, which is this machine.
# SPDX-License-Identifier: Apache-2.0
"""Usage: slurm_test.py SOURCE_FOLDER PROGRAM_TUTTI PROGRAM_SUM_OF_WORKERS

Exits with 77 (skipped) if Slurm is not installed. The daemons run as this user, with a configuration in a temporary
folder, without authentication, on the loopback interface.
"""
import getpass
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ports import free_ports  # noqa: E402

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TUTTI = os.path.abspath(sys.argv.pop(1))
PROGRAM = os.path.abspath(sys.argv.pop(1))
SBATCH = ROOT / "examples" / "clusters" / "slurm.sbatch"
LIMIT = 600
SKIPPED = 77
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=tutti
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """Runs slurmctld and slurmd until close()."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti_slurm_"))
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        configuration = self.folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(host=host, user=getpass.getuser(), folder=self.folder,
                                                      ports=free_ports(2)), encoding="utf-8")
        self.environment = {"PATH": PATH, "HOME": str(self.folder), "SLURM_CONF": str(configuration)}
        sanitizer = os.environ.get("TSAN_OPTIONS")
        self.environment |= {"TSAN_OPTIONS": sanitizer} if sanitizer else {}
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        self.daemons = [self.start("slurmctld", "-D"), self.start("slurmd", "-D", "-N", "localhost")]
        self.wait(lambda: "idle" in self.command("sinfo", "--noheader", "-o", "%t"), "an idle node")

    def start(self, *words):
        return subprocess.Popen(words, env=self.environment, stdout=self.log, stderr=self.log, start_new_session=True)

    def command(self, *words):
        return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
                              env=self.environment, cwd=self.folder).stdout

    def wait(self, condition, what):
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons):
                raise AssertionError(f"Slurm: timed out, or a daemon exited, while waiting for {what}:\n{(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.05)

    def submit(self, *words):
        """Submits a job with `sbatch` and returns its id."""
        answer = self.command("sbatch", "--parsable", *words)
        if not re.fullmatch(r"\d+\n", answer):
            raise AssertionError(answer)
        return int(answer)

    def state(self, job):
        text = self.command("scontrol", "show", "job", "-o", str(job))
        return re.search(r"JobState=(\w+)", text).group(1), re.search(r"ExitCode=([\d:]+)", text).group(1)

    def output(self, job):
        path = self.folder / f"tutti-{job}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def finish(self, job):
        """Returns state, exit code ("code:signal") and output of an ended job."""
        self.wait(lambda: self.state(job)[0] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"),
                  f"the end of job {job}")
        return (*self.state(job), self.output(job))

    def close(self):
        self.command("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def test_example_starts_connected_workers(self):
        job = self.cluster.submit("--nodes=1", "--ntasks-per-node=3", str(SBATCH), PROGRAM)
        state, code, output = self.cluster.finish(job)
        self.assertEqual((state, code), ("COMPLETED", "0:0"), output)
        for task in range(3):
            self.assertIn(f"{task}: worker {task} of 3: sum 6 in job slurm-{job}-0\n", output)
        self.assertEqual(list((self.cluster.folder / ".tutti").iterdir()), [])  # the secret was removed

    def test_failure_ends_the_job(self):
        job = self.cluster.submit("--nodes=1", "--ntasks-per-node=3", str(SBATCH), PROGRAM, "worker 2")
        state, code, output = self.cluster.finish(job)
        self.assertEqual(state, "FAILED", output)
        self.assertNotEqual(code, "0:0")
        self.assertRegex(output, r"task 2: Killed")

    def test_example_without_program_prints_usage(self):
        state, code, output = self.cluster.finish(self.cluster.submit("--nodes=1", str(SBATCH)))
        self.assertEqual((state, code), ("FAILED", "2:0"))
        self.assertIn("expected a program", output)

    def test_tasks_match_slurm_step(self):
        errors = self.cluster.command("srun", "--ntasks=2", "sh", "-c", f"{TUTTI} cluster --json > task_$SLURM_PROCID")
        self.assertEqual(errors, "")
        reports = [json.loads((self.cluster.folder / f"task_{task}").read_text()) for task in range(2)]
        self.assertEqual([report["task"]["index"] for report in reports], [0, 1])
        for report in reports:
            self.assertEqual(report["resolver"], "Slurm")
            self.assertEqual(report["cluster"], {"worker": ["localhost:8888", "localhost:8889"]})

    def test_tutti_run_inside_job_has_its_own_cluster(self):
        script = self.cluster.folder / "one_node.sh"
        script.write_text(f"#!/bin/sh\n#SBATCH --output=tutti-%j.out\n{TUTTI} run -n 2 -- {PROGRAM}\n", encoding="utf-8")
        state, _, output = self.cluster.finish(self.cluster.submit("--ntasks=1", str(script)))
        self.assertEqual(state, "COMPLETED", output)
        for index in range(2):
            self.assertIn(f"[worker-{index}]: worker {index} of 2: sum 3 in job ", output)

    def test_stop_request_is_forwarded_to_processes(self):
        body = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); " \
               "print('ready', flush=True); time.sleep(1000)"
        script = self.cluster.folder / "stop.sh"
        script.write_text(f"#!/bin/sh\n#SBATCH --output=tutti-%j.out\nexec {TUTTI} run -n 2 -- {sys.executable} -c "
                          f'"{body}"\n', encoding="utf-8")
        job = self.cluster.submit("--ntasks=1", str(script))
        self.cluster.wait(lambda: self.cluster.output(job).count("ready") == 2, "two ready processes")
        self.cluster.command("scancel", "--batch", "--signal=TERM", str(job))
        state, code, output = self.cluster.finish(job)
        self.assertEqual((state, code), ("FAILED", "75:0"), output)


if __name__ == "__main__":
    if not all(shutil.which(name, path=PATH) for name in ("slurmctld", "slurmd", "sbatch", "srun")):
        print("skipped: Slurm is not installed; apt-get install slurmctld slurmd slurm-client")
        sys.exit(SKIPPED)
    unittest.main()
