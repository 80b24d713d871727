#!/usr/bin/env python3
# Tests that skipped parts of a file, and tests that are not in a build, do not count as passed.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent
PLANTED = """
import sys, unittest
sys.path.insert(0, {support!r})
import counted_unittest
class Passing(unittest.TestCase):
    def test_it(self): pass
class Skipping(unittest.TestCase):
    def test_it(self): self.skipTest("a required program is missing")
class Failing(unittest.TestCase):
    def test_it(self): self.fail("wrong")
class Wanting(unittest.TestCase):
    def test_it(self): pass
counted_unittest.main(apart={apart!r})
"""
CASES = """<testsuite><testcase name="good" status="run"/><testcase name="cli" status="notrun"><skipped message=""/></testcase>
<testcase name="on_gpu" status="notrun"><skipped message=""/></testcase></testsuite>"""


class PartsOfAFile(unittest.TestCase):
    def code_of(self, *names, apart=()):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "planted_test.py")
            path.write_text(PLANTED.format(support=str(TESTS / "support"), apart=list(apart)), encoding="utf-8")
            result = subprocess.run([sys.executable, path, *names], text=True, capture_output=True)
        return result.returncode, result.stderr

    def test_exit_code_0_means_all_tests_ran(self):
        self.assertEqual(self.code_of("Passing")[0], 0)
        code, errors = self.code_of("Passing", "Skipping")
        self.assertEqual(code, 77)
        self.assertIn("a required program is missing", errors)
        self.assertEqual(self.code_of("Skipping", "Failing")[0], 1)
        self.assertEqual(self.code_of("Absent")[0], 1)

    def test_separately_registered_class_runs_only_by_name(self):
        self.assertEqual(self.code_of()[0], 1)
        self.assertEqual(self.code_of(apart=["Skipping", "Failing"])[0], 0)
        self.assertEqual(self.code_of("Skipping", apart=["Skipping", "Failing"])[0], 77)
        self.assertEqual(self.code_of(apart=["Passing", "Skipping", "Failing", "Wanting"])[0], 1)

    def test_files_that_skip_tests_are_counted(self):
        words = ("skip" + "Test(", "skip" + "Unless(", "skip" + "If(", "Skip" + "Test")
        for path in TESTS.rglob("*_test.py"):
            text = path.read_text(encoding="utf-8")
            if path != pathlib.Path(__file__).resolve() and any(word in text for word in words):
                self.assertIn("counted_unittest.main(", text, path)


class Summary(unittest.TestCase):
    def summary_of(self, label, lines, cases=CASES):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, name) for name in ("junit.xml", "tests.json", "output.log", "not-built.txt")]
            labels = {"good": "unit", "cli": label, "on_gpu": "gpu"}
            tests = [{"name": name, "properties": [{"name": "LABELS", "value": [value]}]} for name, value in labels.items()]
            for path, text in zip(paths, (cases, json.dumps({"tests": tests}), "", lines)):
                path.write_text(text, encoding="utf-8")
            result = subprocess.run([sys.executable, TESTS / "summarize_results.py", *paths], text=True, capture_output=True)
        return result.returncode, result.stdout

    def test_unexpected_skip_fails(self):
        code, text = self.summary_of("integration", "")
        self.assertEqual(code, 1, text)
        self.assertIn("SKIPPED cli", text)
        code, text = self.summary_of("cgroup", "")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"cgroup +0 +0 +0 +1\n")

    def test_tests_in_one_process_are_counted_individually(self):
        whole, broken = (f'<testcase name="{name}" status="{status}"><system-out>[==========] 12 tests from 3 test suites ran. '
                         f'(5 ms total)\n{lines}</system-out></testcase>'
                         for name, status, lines in (("good", "run", "[  PASSED  ] 12 tests."),
                                                     ("cli", "fail", "[  FAILED  ] 2 tests, listed below:")))
        code, text = self.summary_of("integration", "", f"<testsuite>{whole}{broken}</testsuite>")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"unit +12 +12 +0 +0\n")
        self.assertRegex(text, r"integration +12 +10 +2 +0\n")
        self.assertIn("FAILED  cli", text)

    def test_unbuilt_tests_are_listed(self):
        code, text = self.summary_of("cgroup", "258 tests of cuda, gpu (no CUDA toolkit)\n")
        self.assertEqual(code, 0, text)
        self.assertIn("  not built here: 258 tests of cuda, gpu (no CUDA toolkit)\n", text)

    def test_unbuilt_tests_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            tests, script = pathlib.Path(folder, "tests"), pathlib.Path(folder, "script.cmake")
            (tests / "gpu").mkdir(parents=True)
            (tests / "gpu" / "a_test.cc").write_text("TEST(A, One) {}\nTEST(A, Two) {}\n", encoding="utf-8")
            (tests / "png_test.cc").write_text("TEST(B, Reads) {}\n", encoding="utf-8")
            script.write_text(f"""set(CMAKE_BINARY_DIR {folder})
                set(CMAKE_CURRENT_SOURCE_DIR {tests})
                include({TESTS.parent}/cmake/TuttiTestsNotBuilt.cmake)
                tutti_tests_not_built("no CUDA" gpu)
                tutti_tests_not_built("no libpng" png_*_test.cc png_test.cc)""", encoding="utf-8")
            subprocess.run(["cmake", "-P", script], check=True, capture_output=True)
            lines = pathlib.Path(folder, "tests-not-built.txt").read_text(encoding="utf-8")
        self.assertEqual(lines, "2 tests of gpu (no CUDA)\n1 tests of png_*_test.cc, png_test.cc (no libpng)\n")


if __name__ == "__main__":
    unittest.main()
