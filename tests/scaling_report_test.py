#!/usr/bin/env python3
# Runs the scaling benchmark for a few steps, and checks its table and its errors.
# SPDX-License-Identifier: Apache-2.0
"""Usage: scaling_report_test.py SOURCE_FOLDER BUILD_FOLDER [ScalingReport.test_NAME]"""
import os
import re
import subprocess
import sys
import unittest

SOURCE, BUILD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
PROGRAM = os.path.join(SOURCE, "benchmarks", "train_step", "scaling.py")
ROW = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)(?:  (\d+) processes take turns on \d+ cores)?$", re.M)


def run(*flags):
    result = subprocess.run([sys.executable, PROGRAM, "--build", BUILD, "--rounds", "1", "--steps", "6", "--batch-size", "64",
                             "--test-examples", "500", *flags], text=True, capture_output=True, timeout=600)
    print(result.stdout, result.stderr, sep="", flush=True)
    return result


class ScalingReport(unittest.TestCase):
    def rows_of(self, result):
        self.assertIn("processes  images/s  speed-up  efficiency    loss  accuracy", result.stdout)
        return [(int(row[0]), *map(float, row[1:6]), row[6]) for row in ROW.findall(result.stdout)]

    def test_reports_images_per_second_and_speed_up_of_1_2_4_processes(self):
        result = run("--processes", "1,2,4")
        self.assertEqual(result.returncode, 0)
        rows = self.rows_of(result)
        self.assertEqual([row[0] for row in rows], [1, 2, 4])
        cores = len(os.sched_getaffinity(0))
        for count, speed, speed_up, efficiency, loss, accuracy, turns in rows:
            self.assertGreater(speed, 0)
            self.assertAlmostEqual(speed_up, speed / rows[0][1], delta=0.006 + 0.1 * speed_up / speed)
            self.assertAlmostEqual(efficiency, speed_up / count, delta=0.006)
            self.assertEqual(turns, str(count) if count > cores else "")
            # All rows of the table have the same training, except for the order of sums.
            self.assertAlmostEqual(loss, rows[0][4], delta=1e-3)
            self.assertAlmostEqual(accuracy, rows[0][5], delta=0.011)
        self.assertLess(rows[0][4], 2.4)  # after a few steps, the loss is at most slightly above ln(10)
        self.assertGreater(rows[0][5], 0.1)

    # On a busy machine, no realistic limit is reliable, so this test uses limits that are always
    # met or never met.
    def test_efficiency_below_limit_is_an_error(self):
        few = run("--processes", "1", "--min-efficiency", "1")
        self.assertEqual(few.returncode, 0)  # the efficiency of one process is 1 by definition
        self.assertEqual(self.rows_of(few)[0][2:4], (1.0, 1.0))
        many = run("--processes", "1,2,4", "--min-efficiency", "9")
        self.assertEqual(many.returncode, 1)
        cores = len(os.sched_getaffinity(0))
        named = [int(count) for count in re.findall(r"(\d) processes have an efficiency of", many.stderr)]
        self.assertEqual(named, [count for count in (1, 2, 4) if count <= cores])

    def test_invalid_numbers_are_rejected(self):
        for flags in (("--processes", "2,4"), ("--steps", "1"), ("--rounds", "0")):
            with self.subTest(flags):
                result = run(*flags)
                self.assertEqual(result.returncode, 2)
                self.assertIn("begin with 1", result.stderr)


if __name__ == "__main__":
    unittest.main()
