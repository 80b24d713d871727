#!/usr/bin/env python3
# Runs the program `tutti` and looks at its output and exit codes.
# SPDX-License-Identifier: Apache-2.0
"""Usage: tutti_cli_test.py PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


def run(*words):
    result = subprocess.run([PROGRAM, *words], text=True, capture_output=True, timeout=60)
    return result.returncode, result.stdout, result.stderr


class TuttiProgram(unittest.TestCase):
    def test_devices_lists_the_processor_and_its_virtual_devices(self):
        code, text, _ = run("devices")
        self.assertEqual(code, 0)
        self.assertIn("cpu:0-63", text)
        self.assertIn("this version has no GPU backend", text)

    def test_devices_json_agrees_with_the_system(self):
        code, text, _ = run("devices", "--json")
        self.assertEqual(code, 0)
        report = json.loads(text)
        cpu = report["devices"][0]
        self.assertEqual(cpu["type"], "cpu")
        self.assertEqual(cpu["cores"], len(os.sched_getaffinity(0)))
        self.assertEqual(cpu["memory_bytes"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        self.assertEqual(report["default_devices"], "cpu:0")
        self.assertFalse(report["gpu"]["available"])

    def test_cores_follow_the_affinity_of_the_process(self):
        result = subprocess.run(["taskset", "-c", str(min(os.sched_getaffinity(0))), PROGRAM, "devices", "--json"],
                                text=True, capture_output=True, check=True)
        self.assertEqual(json.loads(result.stdout)["devices"][0]["cores"], 1)

    def test_doctor_names_libraries_and_ends_with_a_verdict(self):
        code, text, _ = run("doctor")
        self.assertIn(code, (0, 1))
        for word in ("oneDNN", "zlib", "libpng", "libjpeg", "vector instructions", "memory", "Fashion-MNIST"):
            self.assertIn(word, text)
        self.assertTrue(text.strip().splitlines()[-1].startswith("Verdict: "))

    def test_doctor_json_verdict_matches_the_exit_code(self):
        code, text, _ = run("doctor", "--json")
        report = json.loads(text)
        self.assertEqual(code, 1 if report["verdict"] == "bad" else 0)
        verdicts = {entry["verdict"] for part in ("build", "machine") for entry in report[part]}
        order = ["ok", "warning", "bad"]
        self.assertEqual(report["verdict"], max(verdicts, key=order.index))

    def test_doctor_says_what_a_missing_data_set_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([PROGRAM, "doctor", "--json", "--data-dir", folder], text=True, capture_output=True)
        found = {entry["subject"]: entry for entry in json.loads(result.stdout)["machine"]}
        self.assertEqual(found["Fashion-MNIST"]["verdict"], "warning")
        self.assertIn("apt-get install dataset-fashion-mnist", found["Fashion-MNIST"]["advice"])

    def test_wrong_usage_ends_with_2_and_the_list(self):
        code, _, errors = run("dance")
        self.assertEqual(code, 2)
        self.assertEqual(errors, "tutti: unknown command 'dance'; expected one of devices, doctor\n")
        code, _, errors = run()
        self.assertEqual(code, 2)
        self.assertIn("expected one of devices, doctor", errors)
        code, _, errors = run("doctor", "--fix")
        self.assertEqual(code, 2)
        self.assertIn("unknown flag --fix", errors)

    def test_help_ends_with_0(self):
        code, text, _ = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("devices", text)


if __name__ == "__main__":
    unittest.main()
