#!/usr/bin/env python3
# Tests jobs under `tutti run --max-restarts` whose workers cannot continue together: they restart,
# or end with an error.
# SPDX-License-Identifier: Apache-2.0
"""Usage: restarted_job_test.py RECOVERING_STATE RESTARTED_PROGRAM ESTIMATOR TUTTI [--mpirun MPIRUN] [--moments N] CLASS...

--moments: number of runs per style in which one process is killed or stopped at a time that the seed determines.
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, Job  # noqa: E402


def parse():
    parser = argparse.ArgumentParser()
    for name in ("program", "restarted", "estimator", "tutti"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--mpirun")
    parser.add_argument("--moments", type=int, default=1)
    return parser.parse_known_args()


ARGUMENTS, REST = parse()
PROGRAM, TUTTI = ARGUMENTS.program, ARGUMENTS.tutti
LIMIT = 100  # seconds; a third of the timeout for workers that do not join
for each in [name for name in os.environ if name.startswith(("TF_CONFIG", "TUTTI_"))]:
    del os.environ[each]
STEPS = 6


def train(restarts=3, program=()):
    """Returns the exit code, the workers' final hashes, and standard error."""
    result = subprocess.run([TUTTI, "run", "-n", "3", "--max-restarts", str(restarts), "--", PROGRAM, "--state-mb", "1",
                             "--steps", str(STEPS), "--least-step-ms", "0", *program],
                            text=True, capture_output=True, timeout=LIMIT)
    return result.returncode, re.findall(r"^\[worker-\d\]: hash (.*)$", result.stdout, re.MULTILINE), result.stderr


class RestartedJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        code, hashes, errors = train()
        assert code == 0 and len(hashes) == 3 and len(set(hashes)) == 1, errors
        cls.calm = hashes[0]

    def check(self, code, hashes, errors):
        self.assertEqual(code, 0, errors)
        self.assertEqual(set(hashes), {self.calm}, errors)

    def test_finished_workers_restart_after_death_in_last_step(self):
        code, hashes, errors = train(program=["--dies-after", str(STEPS)])
        self.check(code, hashes, errors)
        self.assertRegex(errors, r"tutti run: worker-\d has finished, but worker-1, which was restarted, is waiting for it\n")

    def test_one_restart_per_worker_starts_new_job_without_recovery(self):
        code, hashes, errors = train(restarts=1, program=["--without-recovery", "--dies-after", "3"])
        self.check(code, hashes, errors)
        self.assertEqual(len(hashes), 3)
        restarts = re.findall(r"tutti run: (worker-\d): .* restarting it", errors)
        self.assertEqual(sorted(restarts), ["worker-0", "worker-1", "worker-2"], errors)

    def test_lost_shards_are_restored_from_commit(self):
        for recovery in ([], ["--without-recovery"]):
            with self.subTest(recovery):
                self.check(*train(program=["--strategy", "fully_sharded", "--dies-after", "3"] + recovery))

    def test_death_in_last_step_restarts_job_without_recovery(self):
        self.check(*train(program=["--without-recovery", "--dies-after", str(STEPS)]))


class ThreeRounds:
    """Runs the program that creates a strategy in each of three rounds."""

    def run_program(self, *words, launcher=(), tutti_run=("--max-restarts", "3")):
        """Returns exit code, hashes of all processes, output, and seconds."""
        command = launcher or [TUTTI, "run", "-n", "2", *tutti_run, "--"]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            job = Job([*command, ARGUMENTS.restarted, "--folder", folder, *words], MPI)
            code, text = job.finish(LIMIT), job.text()
        return code, re.findall(r"hash (.*)$", text, re.MULTILINE), text, time.monotonic() - begin


class SeveralStrategies(ThreeRounds, unittest.TestCase):
    def test_death_in_any_round_restarts_all_processes_without_recovery(self):
        code, calm, text, _ = self.run_program("--without-recovery")
        self.assertEqual((code, len(calm), len(set(calm))), (0, 2, 1), text)
        for ends_in in range(3):
            for who in range(2):
                with self.subTest(ends_in=ends_in, who=who):
                    code, hashes, text, _ = self.run_program("--without-recovery", "--ends-in", str(ends_in), "--who", str(who))
                    self.assertEqual((code, hashes), (0, calm), text)
                    self.assertEqual(len(re.findall(r"restarting it \(restart 1 of 3\)", text)), 2, text)

    def test_death_in_a_later_round_restarts_all_processes_with_recovery(self):
        code, calm, text, _ = self.run_program()
        self.assertEqual((code, len(calm), len(set(calm))), (0, 2, 1), text)
        code, hashes, text, _ = self.run_program("--ends-in", "1")
        self.assertEqual((code, hashes), (0, calm), text)
        self.assertRegex(text, r"worker 1 \(.*\) has returned to strategy number 1 of the program; expected number 2")


class ExitsEarly(ThreeRounds):
    """A process exits with code 0 while other processes need it: they end long before any deadline and name that process."""

    def check_that_job_ends(self, named, *words, steps=100000, **launch):
        code, hashes, text, seconds = self.run_program(*words, "--steps", str(steps), "--least-step-ms", "1", **launch)
        self.assertNotEqual(code, 0, text)
        self.assertEqual(hashes, [], text)
        self.assertRegex(text, named)
        print(f"  {' '.join(words)}: ended after {seconds:.1f} s", flush=True)


class EarlyExit(ExitsEarly, unittest.TestCase):
    def test_exit_before_joining_fails_job(self):
        for ends in ("exit", "_exit", "return"):
            with self.subTest(ends):
                self.check_that_job_ends(r"worker-1 failed first: exited with code 0 before it joined",
                                         "--ends", ends, "--ends-in", "0", "--ends-before", tutti_run=())

    def test_exit_before_second_strategy_fails_job(self):
        self.check_that_job_ends(r"worker-1 failed first: exited with code 0 before the other tasks finished", "--ends", "return",
                                 "--ends-in", "1", "--ends-before", steps=3, tutti_run=())

    def test_exit_during_training_fails_job(self):
        for ends in ("exit", "_exit", "return"):
            with self.subTest(ends):
                self.check_that_job_ends(r"(worker|rank) 1\b.*(died|left|gone|closed|ended)(.|\n)*"
                                         r"worker-1 failed first: exited with code 0 before the other tasks finished",
                                         "--ends", ends, "--ends-in", "0", tutti_run=())

    def test_early_exit_causes_restart_like_a_failure(self):
        code, calm, text, _ = self.run_program()
        self.assertEqual(code, 0, text)
        for words in (["--ends-before"], []):
            for recovery in ([], ["--without-recovery"]):
                with self.subTest(words + recovery):
                    code, hashes, text, _ = self.run_program("--ends", "exit", "--ends-in", "0", *words, *recovery)
                    self.assertEqual((code, hashes), (0, calm), text)


class EarlyExitUnderMpirun(ExitsEarly, unittest.TestCase):
    def test_exit_during_training_fails_job(self):
        for ends in ("exit", "_exit", "return"):
            with self.subTest(ends):
                self.check_that_job_ends(r"(rank|worker) 1\b", "--ends", ends, "--ends-in", "0",
                                         launcher=[ARGUMENTS.mpirun, "--oversubscribe", "-n", "2"])


class KilledAtAnyMoment(unittest.TestCase):
    """Kills or stops one process at a time that the seed determines: the result equals that of an undisturbed run."""

    def run_once(self, program, words, chance=None, longest=0.0):
        """Returns the processes' results, seconds, and all lines."""
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            job = Job([TUTTI, "run", "-n", "2", "--max-restarts", "5", "--", program, *words(folder)])
            if chance:
                time.sleep(chance.uniform(0.1, longest))
                pids = job.pids(program).values()
                if pids:
                    pid, number = chance.choice(sorted(pids)), chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
                    os.kill(pid, number)
                    # A process that is stopped between two strategies is not a member, so the job
                    # does not declare it lost.
                    time.sleep(4 if number == signal.SIGSTOP else 0)
                    if number == signal.SIGSTOP and pid in job.pids(program).values():
                        os.kill(pid, signal.SIGKILL)
            code, text = job.finish(LIMIT), job.text()
        results = set(re.findall(r"^\[worker-\d\]: (?:hash|weights) +(.*)$", text, re.MULTILINE))
        return (code, results), time.monotonic() - begin, text

    def check_style(self, program, words, name):
        calm, seconds, text = self.run_once(program, words)
        self.assertEqual((calm[0], len(calm[1])), (0, 1), text)
        num_hit = 0
        for seed in range(ARGUMENTS.moments):
            with self.subTest(seed=seed):
                got, _, text = self.run_once(program, words, random.Random(f"{name} {seed}"), seconds)
                self.assertEqual(got, calm, text)
                num_hit += "; restarting it" in text
        print(f"  {name}: {num_hit} of {ARGUMENTS.moments} processes killed or stopped in time, all with {calm[1].copy().pop()[-32:]}", flush=True)

    def test_every_program_style_resumes_exactly(self):
        for style in ("loop", "fit", "estimator", "horovod"):
            for more in ([], ["--without-recovery"]):
                self.check_style(ARGUMENTS.restarted,
                                 lambda folder: ["--style", style, "--folder", folder, "--least-step-ms", "30", *more],
                                 " ".join([style, *more]))

    def test_estimator_example_resumes_exactly(self):
        self.check_style(ARGUMENTS.estimator,
                         lambda folder: ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--examples", "400",
                                         "--checkpoint-dir", os.path.join(folder, "ck")], "examples/estimator")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST])
