#!/usr/bin/env python3
# Builds programs that use libtorch with an installed tutti, and compares training in two processes
# with training in one.
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


def check_training(prefix, programs):
    """Checks DistributedDataParallel: losses equal those of one process up to rounding, and both ranks' weights are bit-identical."""
    program = programs / "libtorch_train"
    alone = losses(run(program))
    assert alone[-1] < 0.5 * alone[0], alone
    output = run(prefix / "bin" / "tutti", "run", "-n", 2, "--", program)
    assert all(abs(a - b) < 1e-4 for a, b in zip(losses(output), alone)), (output, alone)
    weights = re.findall(r"rank [01] of 2: weights (\d+)", output)
    assert len(weights) == 2 and weights[0] == weights[1], output


def check_strategies(prefix, folder, programs):
    """Checks strategies: losses equal those of one replica up to rounding; bits do not depend on how replicas are divided among processes."""
    program = programs / "libtorch_strategy"
    weights = folder / "net.pt"

    def train(strategy, devices, *launcher):
        weights.unlink(missing_ok=True)
        output = run("env", f"TUTTI_STRATEGY={strategy}", f"TUTTI_DEVICES={devices}", *launcher, program, cwd=folder)
        return losses(output), weights.read_bytes()

    alone, _ = train("one_device", "cpu:0")
    assert alone[-1] < 0.5 * alone[0], alone
    launcher = (prefix / "bin" / "tutti", "run", "-n", 2, "--")
    two, kept = train("mirrored", "cpu:0-1")
    assert all(abs(a - b) < 1e-4 for a, b in zip(two, alone)), (two, alone)
    assert train("multi_worker_mirrored", "cpu:0", *launcher) == (two, kept), "expected two processes to match two replicas in one process"
    four, _ = train("multi_worker_mirrored", "cpu:0-1", *launcher)
    assert all(abs(a - b) < 1e-4 for a, b in zip(four, alone)), (four, alone)


def cases_of(program, macro):
    text = (SOURCE / f"tests/install/libtorch/{program}.cc").read_text(encoding="utf-8")
    names = re.findall(rf"[ {{]{macro}\((\w{{9,}})\)", text)
    assert len(names) > 2, (program, macro, names)
    return names


def check_cases(prefix, folder):
    """Runs test cases about gradients, buffers, optimizer state and examples on each rank and each replica."""
    programs = build_project(SOURCE / "tests" / "install" / "libtorch", prefix, folder / "cases")

    def check(cases, ranks, program, *arguments):
        launcher = (prefix / "bin" / "tutti", "run", "-n", ranks, "--") if ranks > 1 else ()
        output = run(*launcher, programs / program, *arguments, cwd=folder)
        for case in cases:
            assert all(f"rank {rank}: ok {case}" in output for rank in range(ranks)), (program, arguments, case, output)

    check(cases_of("libtorch_test", "CASE"), 2, "libtorch_test")
    for ranks, devices in ((1, "cpu:0-1"), (2, "cpu:0"), (2, "cpu:0-1")):
        check(cases_of("libtorch_strategy_test", "CASE"), ranks, "libtorch_strategy_test", devices)
        for ending in cases_of("libtorch_strategy_test", "ENDING_CASE"):
            check([ending], ranks, "libtorch_strategy_test", devices, ending)


def check_page():
    """Checks that docs/libtorch.md shows libtorch_train.cc from its includes, and libtorch_strategy.cc from its training loop."""
    folder = SOURCE / "examples" / "plugins" / "libtorch_train"
    shown = re.findall(r"^```c\+\+\n(.*?)^```", (SOURCE / "docs/libtorch.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for name, start, block in zip(("libtorch_train.cc", "libtorch_strategy.cc"), ("#include", "void train("), shown, strict=True):
        program = (folder / name).read_text(encoding="utf-8")
        assert block == program[program.index(start):], f"docs/libtorch.md: expected the text of {name}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    check_page()
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        folder = pathlib.Path(folder)
        programs = build_project(SOURCE / "examples" / "plugins" / "libtorch_train", prefix, folder / "train")
        check_training(prefix, programs)
        check_strategies(prefix, folder, programs)
        check_cases(prefix, folder)
    print("libtorch: training in two processes, and on replicas of strategies, matches one process")


if __name__ == "__main__":
    main()
