#!/usr/bin/env python3
# Checks the arithmetic of the benchmark of several processes, and what its recorded results say.
# SPDX-License-Identifier: Apache-2.0
"""Usage: scaling_report_test.py SOURCE_FOLDER [ScalingReport.test_NAME]"""
import os
import re
import sys
import unittest
import unittest.mock

SOURCE = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(SOURCE, "benchmarks", "train_step"))
import processes  # noqa: E402  found in the folder above


def run(examples_per_second, batch):
    return {"examples_per_second": examples_per_second, "median_step_seconds": batch / examples_per_second,
            "foreign_cpus": 0.0}


def made_up(processes_per_run, speeds):
    """Results of two rounds, as processes.measure() gives them."""
    rounds = [{"pingpong_ns": [60.0, 60.0], "runs": {name: run(each[number], 256) for name, each in speeds.items()}}
              for number in range(2)]
    return {"model": "small_cnn", "rounds": rounds, "processes": processes_per_run}


class ScalingReport(unittest.TestCase):
    def test_S3_30_speed_and_efficiency_by_number_of_processes(self):
        result = made_up({"1 process": 1, "2 processes, TCP": 2, "4 processes, TCP": 4,
                          "1 process, alone with 1/2 of the batch": 1, "1 process, alone with 1/4 of the batch": 1},
                         {"1 process": (100.0, 110.0), "2 processes, TCP": (160.0, 176.0),
                          "4 processes, TCP": (150.0, 165.0), "1 process, alone with 1/2 of the batch": (100.0, 100.0),
                          "1 process, alone with 1/4 of the batch": (100.0, 100.0)})
        with unittest.mock.patch("os.cpu_count", return_value=2):
            rows = {row[0]: row for row in processes.rows(result)}
        self.assertEqual(rows["1 process"][2], "105.0")  # the median of both rounds
        self.assertEqual(rows["2 processes, TCP"][2], "168.0")
        self.assertEqual(rows["2 processes, TCP"][3], "80%")  # 1.6 times as fast on two cores
        self.assertEqual(rows["4 processes, TCP"][3], "75%")  # 1.5 times: two cores are all there are

    def test_S4_02_recorded_convolutions_scale_with_more_than_half(self):
        with open(os.path.join(SOURCE, "benchmarks", "results", "processes.txt"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertTrue(lines[0].startswith("2 x "))
        model, alone, checked = None, None, 0
        for line in lines:
            if heading := re.match(r"(\w+); CPUs:", line):
                model = heading[1]
            elif row := re.match(r"1 process  +[0-9.e+]+ +([0-9.]+)", line):
                alone = float(row[1])
            elif row := re.match(r"[24] processes, .*?  +[0-9.e+]+ +([0-9.]+) +([0-9]+)%", line):
                # On two cores, of as many as there are. The column is the median of each round's own.
                self.assertAlmostEqual(int(row[2]), 100 * float(row[1]) / alone / 2, delta=10)
                if model == "mlp":
                    continue  # its step is shorter than a message between processes
                self.assertGreater(int(row[2]), 50, (model, line))
                checked += 1
        self.assertEqual(checked, 8)


if __name__ == "__main__":
    unittest.main()
