#!/usr/bin/env python3
# Checks lengths, first lines and folder READMEs.
# SPDX-License-Identifier: Apache-2.0
"""Usage: file_style_test.py [ROOT]

Warns about headers over 250 and sources over 500 lines; fails beyond 700, on lines over 100 columns in C++, on a
missing first sentence or licence line, on a header without #pragma once, and on a library folder without README.md.
"""
import pathlib
import sys

WARN = {".h": 250, ".cc": 500}
FAIL = 700
COLUMNS = 100
LIBRARIES = ("core", "tensor", "autograd", "optimizer", "data", "cross_device_ops", "cluster", "checkpoint", "strategy",
             "model", "model/layers", "cross_device_ops/conformance")
FOLDERS = ("core", "tensor", "autograd", "optimizer", "data", "cross_device_ops", "cluster", "checkpoint", "strategy",
           "model", "tools", "examples", "benchmarks", "tests")
LICENSE = "// SPDX-License-Identifier: Apache-2.0"


def check_file(name, text):
    errors, warnings = [], []
    lines = text.split("\n")
    suffix = pathlib.PurePath(name).suffix
    if len(lines) > FAIL:
        errors.append(f"{name}: {len(lines)} lines; expected at most {FAIL}")
    elif len(lines) > WARN[suffix]:
        warnings.append(f"{name}: {len(lines)} lines; look twice at more than {WARN[suffix]}")
    if not lines[0].startswith("// ") or LICENSE not in lines[1:6]:
        errors.append(f"{name}: expected a sentence on the first line and '{LICENSE}' below it")
    if suffix == ".h" and "#pragma once" not in lines[:30]:
        errors.append(f"{name}: no #pragma once")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and "http" not in line and 'R"' not in line:
            errors.append(f"{name}:{number}: {len(line)} columns; expected at most {COLUMNS}")
        if line != line.rstrip():
            errors.append(f"{name}:{number}: space at the end of the line")
    return errors, warnings


def self_test():
    head = "// What it is.\n" + LICENSE + "\n"
    assert check_file("a.cc", head) == ([], [])
    assert len(check_file("a.h", head)[0]) == 1
    assert len(check_file("a.cc", head + "x" * 101)[0]) == 1
    assert len(check_file("a.cc", "int a;\n")[0]) == 1
    assert len(check_file("a.cc", head + "\n" * 600)[1]) == 1
    assert len(check_file("a.cc", head + "\n" * 800)[0]) == 1


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    errors, warnings, num_files = [], [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in WARN:
                num_files += 1
                more_errors, more_warnings = check_file(path.relative_to(root).as_posix(),
                                                        path.read_text(encoding="utf-8"))
                errors += more_errors
                warnings += more_warnings
    for folder in LIBRARIES:
        if not (root / folder / "README.md").exists():
            errors.append(f"{folder}/README.md is missing")
    for line in [f"warning: {warning}" for warning in warnings] + errors:
        print(line)
    print(f"file style: {num_files} files, {len(warnings)} warnings, {len(errors)} errors")
    return 1 if errors or num_files < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
