#!/usr/bin/env python3
# Builds programs of libtorch against an installed tutti, and trains with two processes as with one.
# SPDX-License-Identifier: Apache-2.0
"""Usage: libtorch_test.py BUILD_FOLDER"""
import pathlib
import re
import sys
import tempfile

from command import run

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def build_project(source, prefix, folder):
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)
    return folder


def losses(output):
    found = [float(loss) for loss in re.findall(r"epoch \d+ loss ([0-9.]+)", output)]
    assert len(found) == 8, output
    return found


def check_training(prefix, folder):
    """The example: loss of one process, weights of the same bits on both."""
    program = build_project(SOURCE / "examples" / "plugins" / "libtorch_train", prefix, folder / "train") / "libtorch_train"
    alone = losses(run(program))
    assert alone[-1] < 0.5 * alone[0], alone
    output = run(prefix / "bin" / "tutti", "run", "-n", 2, "--", program)
    assert all(abs(a - b) < 1e-4 for a, b in zip(losses(output), alone)), (output, alone)
    weights = re.findall(r"rank [01] of 2: weights (\d+)", output)
    assert len(weights) == 2 and weights[0] == weights[1], output


def check_cases(prefix, folder):
    """What gradients, buffers, optimizer state and examples are on each rank."""
    program = build_project(SOURCE / "tests" / "install" / "libtorch", prefix, folder / "cases") / "libtorch_test"
    names = re.findall(r"CASE\((\w{9,})\)", (SOURCE / "tests/install/libtorch/libtorch_test.cc").read_text(encoding="utf-8"))
    assert len(names) > 5, names
    output = run(prefix / "bin" / "tutti", "run", "-n", 2, "--", program, cwd=folder)
    for name in names:
        assert all(f"rank {rank}: ok {name}" in output for rank in (0, 1)), (name, output)


def check_page():
    """The page has the program as it is."""
    program = (SOURCE / "examples/plugins/libtorch_train/libtorch_train.cc").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```c\+\+\n(.*?)^```", (SOURCE / "docs/libtorch.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown == program[program.index("#include"):], "docs/libtorch.md: expected the text of libtorch_train.cc"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    check_page()
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        check_training(prefix, pathlib.Path(folder))
        check_cases(prefix, pathlib.Path(folder))
    print("libtorch: two processes trained as one")


if __name__ == "__main__":
    main()
