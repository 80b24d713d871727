#!/usr/bin/env python3
# `tutti run --max-restarts`: jobs whose workers can no longer go on with each other begin anew, or end and say so.
# SPDX-License-Identifier: Apache-2.0
"""Usage: restarted_job_test.py PROGRAM_RECOVERING_STATE TUTTI"""
import os
import re
import subprocess
import sys
import unittest

PROGRAM, TUTTI = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
LIMIT = 100  # seconds; a third of the patience with workers that do not come
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CONFIG", "TUTTI_"))}
STEPS = 6


def train(*words, restarts=3, program=()):
    """Exit code, the hashes that workers ended with, standard error."""
    result = subprocess.run([TUTTI, "run", "-n", "3", "--max-restarts", str(restarts), *words, "--", PROGRAM, "--state-mb", "1",
                             "--steps", str(STEPS), "--least-step-ms", "0", *program],
                            text=True, capture_output=True, timeout=LIMIT, env=ENVIRONMENT)
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

    def test_workers_that_have_finished_come_back_for_one_that_died_in_the_last_step(self):
        code, hashes, errors = train(program=["--dies-after", str(STEPS)])
        self.check(code, hashes, errors)
        self.assertRegex(errors, r"tutti run: worker-\d had finished, but worker-1, which was started again, waits for it\n")

    def test_without_restarts_for_those_that_have_finished_the_job_ends_and_names_who_died(self):
        code, _, errors = train("--max-job-restarts", "1", program=["--dies-after", str(STEPS)])
        self.assertEqual(code, 128 + 9, errors)
        self.assertRegex(errors, r"tutti run: worker-1 failed first: killed by signal 9 \(SIGKILL\) after [\d.]+ s; not started "
                                 r"again: worker-\d has finished and cannot repeat the last steps with it: the job has used its "
                                 r"1 restarts\n")

    def test_without_recovery_one_restart_each_begins_a_new_job(self):
        code, hashes, errors = train(restarts=1, program=["--without-recovery", "--dies-after", "3"])
        self.check(code, hashes, errors)
        self.assertEqual(len(hashes), 3)
        restarts = re.findall(r"tutti run: (worker-\d): .* is started again", errors)
        self.assertEqual(sorted(restarts), ["worker-0", "worker-1", "worker-2"], errors)

    def test_of_shards_that_died_the_others_have_what_was_committed(self):
        for recovery in ([], ["--without-recovery"]):
            with self.subTest(recovery):
                self.check(*train(program=["--strategy", "fully_sharded", "--dies-after", "3"] + recovery))

    def test_without_recovery_in_the_last_step(self):
        self.check(*train(program=["--without-recovery", "--dies-after", str(STEPS)]))


if __name__ == "__main__":
    unittest.main()
