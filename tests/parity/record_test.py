#!/usr/bin/env python3
# Tests that record.py --check detects records that are not what TensorFlow computed.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class CheckOfRecords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = pathlib.Path(folder.name) / "parity"
        shutil.copytree(HERE, self.copy, ignore=shutil.ignore_patterns("__pycache__"))

    def complaints(self):
        result = subprocess.run([sys.executable, self.copy / "record.py", "--check"], capture_output=True, text=True,
                                timeout=600, check=False)
        lines = result.stdout.splitlines()
        self.assertEqual(result.returncode, 0 if "records match the scripts" in lines[0] else 1, result.stderr)
        return lines[:-1]

    def test_committed_records_are_valid(self):
        self.assertEqual(self.complaints(), [])

    def test_changed_number_is_detected(self):
        path = self.copy / "records" / "losses.safetensors"
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
        self.assertEqual(self.complaints(), ["losses: the numbers have changed since the record was written"])

    def test_changed_script_makes_its_records_stale(self):
        with open(self.copy / "loss_cases.py", "a", encoding="utf-8") as script:
            script.write("# changed\n")
        # Also affects metric_cases.py, which imports loss_cases.py, and fit_cases.py, which imports metric_cases.py.
        self.assertEqual(self.complaints(), [f"{name}: the scripts have changed since the record was written"
                                             for name in ("fit", "losses", "metrics")])

    def test_missing_and_unexpected_records_are_detected(self):
        records = self.copy / "records"
        (records / "losses.safetensors").rename(records / "lossless.safetensors")
        self.assertEqual(self.complaints(), ["losses: the record is missing", "lossless: no script writes this record"])


if __name__ == "__main__":
    unittest.main()
