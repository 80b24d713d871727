#!/usr/bin/env python3
# Checks that docs/gpu_kernels.md lists exactly the kernels of tensor/cuda, how their threads work
# (alone or together), and the operations that they register.
# SPDX-License-Identifier: Apache-2.0
"""Usage: kernels_test.py SOURCE_FOLDER"""
import pathlib
import re
import sys

KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^()]+\)\s*)?(\w+)\(")
LAUNCH = re.compile(r"\blaunch(_cooperative)?\(\s*(\w+)")
REGISTERS = re.compile(r"^void register_\w+_kernels\(", re.MULTILINE)


def kernels_of(sources):
    """Returns {(file, kernel): "alone" or "together"}."""
    owners = {}
    for name, text in sources.items():
        for kernel in KERNEL.findall(text):
            owners[name, kernel] = set()
    for name, text in sources.items():
        for together, kernel in LAUNCH.findall(text):
            key = (name, kernel)
            if key in owners:
                owners[key].add("together" if together else "alone")
    return {key: "/".join(sorted(kinds)) for key, kinds in owners.items()}


def operations_of(sources, formulas):
    """Returns {file: its operations} for files that register kernels. One file also gets the operations in `formulas`."""
    found = {name: set(re.findall(r"OpId::k(\w+)", text + formulas * ("list_elementwise_formulas" in text)))
             for name, text in sources.items() if REGISTERS.search(text)}
    return {name: operations for name, operations in found.items() if operations}


def main():
    root = pathlib.Path(sys.argv[1])
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted((root / "tensor" / "cuda").iterdir()) if path.suffix in (".cu", ".cc", ".h")}
    assert sum(len(KERNEL.findall(text)) == text.count("__global__") for text in sources.values()) == len(sources), "a __global__ does not match the pattern KERNEL"
    page = (root / "docs" / "gpu_kernels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \| (\w+) \| \S", page, re.MULTILINE)
    listed = {(file, kernel): kind for file, kernel, kind in rows}
    actual = kernels_of(sources)
    mistakes = [f"{kernel}: listed twice" for kernel in listed if [row[:2] for row in rows].count(kernel) > 1]
    mistakes += [f"{file}: {kernel} ({kind}) is missing or listed with another kind" for (file, kernel), kind in actual.items() if listed.get((file, kernel)) != kind]
    mistakes += [f"{file}: has no kernel {kernel}" for file, kernel in listed if (file, kernel) not in actual]
    operations = {file: set(names.split(", ")) for file, names in re.findall(r"^\| `([\w.]+)` \| ([A-Z][\w, ]*) \|$", page, re.MULTILINE)}
    expected = operations_of(sources, (root / "tensor/cpu/elementwise_functions.h").read_text(encoding="utf-8"))
    mistakes += [f"{file}: expected the operations {sorted(names)}, got {sorted(operations.get(file, []))}" for file, names in expected.items()
                 if operations.get(file) != names]
    mistakes += [f"{file}: registers no operations" for file in operations if file not in expected]
    if mistakes or len(actual) < 40 or len(expected) < 15:
        sys.exit(f"docs/gpu_kernels.md ({len(actual)} kernels and {len(expected)} registering files in tensor/cuda):\n" + "\n".join(mistakes))
    print(f"{len(actual)} kernels, {sum(map(len, expected.values()))} operations")


if __name__ == "__main__":
    main()
