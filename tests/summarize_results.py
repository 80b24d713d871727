#!/usr/bin/env python3
# Counts what ctest ran per label, and fails when something failed or was skipped that needs no GPU.
# SPDX-License-Identifier: Apache-2.0
"""Usage: summarize_results.py JUNIT.xml OUTPUT.log"""
import collections
import sys
import xml.etree.ElementTree

ALLOWED_TO_SKIP = "gpu"


def read_results(path):
    """(name, labels, outcome) of each test; the outcome is passed, failed or skipped."""
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        labels = []
        for entry in case.iter("property"):
            if entry.get("name") == "cmake_labels":
                labels = [label for label in entry.get("value", "").split(";") if label]
        status = case.get("status")
        if status == "run":
            outcome = "passed"
        elif case.find("skipped") is not None or status in ("notrun", "disabled"):
            outcome = "skipped"
        else:
            outcome = "failed"
        yield case.get("name"), labels or ["(no label)"], outcome


def main():
    try:
        results = list(read_results(sys.argv[1]))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"no results: {error}; the output was:")
        with open(sys.argv[2], encoding="utf-8", errors="replace") as file:
            print(file.read()[-4000:])
        return 1
    counts = collections.defaultdict(collections.Counter)
    for _, labels, outcome in results:
        for label in labels:
            counts[label][outcome] += 1
    print(f"  {'label':14} {'run':>6} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for label in sorted(counts):
        count = counts[label]
        run = count["passed"] + count["failed"]
        print(f"  {label:14} {run:6} {count['passed']:7} {count['failed']:7} {count['skipped']:8}")
    failed = [name for name, _, outcome in results if outcome == "failed"]
    skipped = [name for name, labels, outcome in results if outcome == "skipped" and ALLOWED_TO_SKIP not in labels]
    if failed:
        with open(sys.argv[2], encoding="utf-8", errors="replace") as file:
            print(file.read()[-20000:])
    for name in failed:
        print(f"  FAILED  {name}")
    for name in skipped:
        print(f"  SKIPPED {name}: only tests with label {ALLOWED_TO_SKIP} may be skipped")
    if not results:
        print("  no test was found")
    return 1 if failed or skipped or not results else 0


if __name__ == "__main__":
    sys.exit(main())
