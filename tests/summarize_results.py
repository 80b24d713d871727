#!/usr/bin/env python3
# Counts ctest's results per label. Fails if a test failed, or if a test that must run was skipped.
# SPDX-License-Identifier: Apache-2.0
"""Usage: summarize_results.py JUNIT.xml TESTS.json OUTPUT.log [TESTS_NOT_BUILT.txt]

TESTS.json is the output of `ctest --show-only=json-v1`, because JUnit files of ctest contain no labels before CMake 3.27.
TESTS_NOT_BUILT.txt is written by cmake/TuttiTestsNotBuilt.cmake. It lists the tests that the build lacks; this program prints them, too.
"""
import collections
import json
import re
import sys
import xml.etree.ElementTree

# Output of a GoogleTest program that ran several tests in one process.
RAN = re.compile(r"\[==========\] (\d+) tests? from ")
FAILED = re.compile(r"\[  FAILED  \] (\d+) tests?, listed below")
ALLOWED_TO_SKIP = {"gpu", "slurm", "cgroup", "no_network"}


def read_labels(path):
    """Returns {name of a ctest test: its labels}."""
    with open(path, encoding="utf-8") as file:
        tests = json.load(file)["tests"]
    labels = {}
    for test in tests:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        labels[test["name"]] = properties.get("LABELS") or ["(no label)"]
    return labels


def read_results(path, labels):
    """Yields (name, labels, outcome, passed, failed) for each ctest test. The outcome is passed, failed or skipped; the
    counts are numbers of tests within the ctest test."""
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        if status == "run":
            outcome = "passed"
        elif case.find("skipped") is not None or status in ("notrun", "disabled"):
            outcome = "skipped"
        else:
            outcome = "failed"
        output = case.findtext("system-out") or ""
        if outcome == "skipped" and FAILED.search(output):
            outcome = "failed"  # another test of the same process failed
        ran = max([1] + [int(count) for count in RAN.findall(output)])
        failed = max([1] + [int(count) for count in FAILED.findall(output)]) if outcome == "failed" else 0
        yield (case.get("name"), labels.get(case.get("name"), ["(no label)"]), outcome,
               0 if outcome == "skipped" else max(ran - failed, 0), failed)


def print_table(results):
    counts = collections.defaultdict(collections.Counter)
    for _, labels, outcome, passed, failed in results:
        for label in labels:
            counts[label]["passed"] += passed
            counts[label]["failed"] += failed
            counts[label]["skipped"] += outcome == "skipped"
    print(f"  {'label':14} {'run':>6} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for label in sorted(counts):
        count = counts[label]
        run = count["passed"] + count["failed"]
        print(f"  {label:14} {run:6} {count['passed']:7} {count['failed']:7} {count['skipped']:8}")


def not_built(path):
    if not path:
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def tail(path, length):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()[-length:]


def main():
    try:
        results = list(read_results(sys.argv[1], read_labels(sys.argv[2])))
    except (OSError, ValueError, xml.etree.ElementTree.ParseError) as error:
        print(f"summarize_results.py: cannot read the results: {error}; ctest's output:\n{tail(sys.argv[3], 4000)}")
        return 1
    print_table(results)
    for line in not_built(sys.argv[4] if len(sys.argv) > 4 else None):
        print(f"  not built here: {line}")
    failed = [name for name, _, outcome, _, _ in results if outcome == "failed"]
    skipped = [name for name, labels, outcome, _, _ in results if outcome == "skipped" and not ALLOWED_TO_SKIP & set(labels)]
    if failed:
        print(tail(sys.argv[3], 20000))
    for name in failed:
        print(f"  FAILED  {name}")
    for name in skipped:
        print(f"  SKIPPED {name}: only tests with label {' or '.join(sorted(ALLOWED_TO_SKIP))} may be skipped")
    if not results:
        print("  no test was found")
    return 1 if failed or skipped or not results else 0


if __name__ == "__main__":
    sys.exit(main())
