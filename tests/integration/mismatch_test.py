#!/usr/bin/env python3
# Calls that differ, or are wrong on one rank, x four algorithms x one transport: every rank gets an error that names both sides.
# SPDX-License-Identifier: Apache-2.0
"""Usage: mismatch_test.py PROGRAM TRANSPORT [--ranks N] [--mpirun MPIRUN]

Starts `mismatch_rank`: N processes over shm, tcp or mpi (tests/cross_device_ops/communicator_mismatch_test.cc has threads). In each case one of the ranks makes another call
than the others, with few numbers and with many. Every rank must get INVALID_ARGUMENT, "collective mismatch" of this kind, which names the
rank that differs, another one, and the calls of both; nobody may get a result. Of arguments that are wrong on one rank alone ("arguments")
that rank gets its own error, and the others the reason; where all ranks ask for the same wrong things they go on ("alike"). Each rank writes
a file of its own: what mpirun passes on of several ranks may stand within one line. The longest time is printed beside the goal (250 ms) and
not judged.
"""
import json
import os
import re
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, Job, end_with, parse, require  # noqa: E402

KINDS = ["operation", "reduce op", "dtype", "count", "shape", "root", "name", "order", "group", "compression"]
ALGORITHMS = ["canonical", "ring", "tree", "halving_doubling"]
# What the two calls say where they differ: of the rank that differs, and of another one.
SAID = {"operation": (r"broadcast\(", r"all_reduce\(SUM"), "reduce op": (r"all_reduce\(MAX", r"all_reduce\(SUM"), "dtype": ("int32", "float32"),
        "count": (r"x (11|119999)\b", r"x (12|120000)\b"), "shape": (r"\[(3|30000), 4\]", r"\[4, (3|30000)\]"), "root": ("root 1", "root 0"),
        "name": ("'dense/bias'", "'dense/kernel'"), "order": ("'bias'", "'kernel'"), "group": (r"names \d;|names \d$", "the group of ranks 0, 1, 2"),
        "compression": ("float16", "all_reduce")}
# What is wrong with a call of one rank, as all ranks get it.
WRONG = {"arguments: root": "expected a root from 0 to 2, got 3", "arguments: memory": "input and output overlap",
         "arguments: type": "MEAN needs a floating type, got int32", "arguments: length": "expected an output of ", "arguments: group": "expected increasing ranks from 0 to 2"}
GOAL = 0.25  # s
HANG = 500


def run_ranks(arguments, folder):
    """What all ranks have seen."""
    program = [arguments.program, "--transport", arguments.transport, "--size", str(arguments.ranks), "--folder", folder]
    if arguments.transport == "mpi":
        commands = [[arguments.mpirun, "-n", str(arguments.ranks)] + program]
    else:
        commands = [program + ["--rank", str(rank)] for rank in range(arguments.ranks)]
    for job in [Job(command, MPI if arguments.transport == "mpi" else None) for command in commands]:
        job.finish(HANG)
        job.succeed()
    cases = []
    for rank in range(arguments.ranks):
        with open(os.path.join(folder, f"seen-by-rank-{rank}"), encoding="utf-8") as file:
            cases += [json.loads(line) for line in file]
    return cases


def mistake_of_refusal(case):
    """A rank that asks for what it may not says so itself; the others name its mistake."""
    kind, error, odd = case["kind"], case["error"], case["odd"]
    if WRONG[kind] not in error:
        return f"it does not say why: '{WRONG[kind]}'"
    if case["rank"] == odd:
        return None if error.startswith(f"INVALID_ARGUMENT: rank {odd}: ") and "mismatch" not in error else "not its own error"
    said = rf"mismatch \(group\): rank {odd} names no group" if kind == "arguments: group" else \
        rf"mismatch \(arguments\): .*rank {odd} calls .*mismatch_rank.cc:\d+, which it refuses: "
    return None if re.search(said, error) else f"it does not name rank {odd} and its call"


def mistake(case):
    """Nothing, or what is wrong with what a rank got."""
    kind, error, odd = case["kind"], case["error"], case["odd"]
    if kind == "alike":
        return "they cannot go on" if error else None
    if kind in WRONG and error:
        return mistake_of_refusal(case)
    if not error:
        return "no error: a wrong result, without a word"
    if not error.startswith("INVALID_ARGUMENT") or f"collective mismatch ({kind})" not in error:
        return "another error"
    named = {int(rank) for rank in re.findall(r"rank (\d+) (?:calls|names)", error)}
    if odd not in named or len(named) < 2:
        return f"it names the ranks {sorted(named)}; expected {odd}, which differs, and another one"
    lines = 2 if kind != "group" else 0  # groups are compared, not calls
    if not all(re.search(said, error) for said in SAID[kind]) or error.count("mismatch_rank.cc:") < lines:
        return f"it does not show both calls, with {' and '.join(SAID[kind])} and their lines"
    return None


def main():
    arguments = parse(__doc__, "program", "transport", ranks=3, mpirun="mpirun")
    with tempfile.TemporaryDirectory() as folder:
        cases = run_ranks(arguments, folder)
    kinds = KINDS + list(WRONG)
    expected = (len(kinds) * 2 + 1) * len(ALGORITHMS) * arguments.ranks
    mistakes = [] if len(cases) == expected else [f"{len(cases)} errors or results; expected {expected}"]
    for algorithm in ALGORITHMS:
        own = [case for case in cases if case["algorithm"] == algorithm]
        missing = [kind for kind in kinds + ["alike"] if kind not in {case["kind"] for case in own}]
        mistakes += [f"{algorithm}: no case of {', '.join(missing)}"] if missing else []
        worst = max(own, key=lambda case: case["seconds"])
        print(f"  {arguments.transport:10} {algorithm:17} {len(own)} errors of {len(kinds)} kinds, the last after {1000 * worst['seconds']:.1f} ms "
              f"({worst['kind']}; goal {1000 * GOAL:.0f})")
    for case in cases:
        wrong = mistake(case)
        if wrong:
            mistakes.append(f"{case['algorithm']}, {case['kind']} x {case['count']} of rank {case['odd']}: rank {case['rank']}: {wrong}: {case['error']}")
    require(not mistakes, f"{len(mistakes)} mistakes", "\n".join(mistakes[:20]))


if __name__ == "__main__":
    end_with(main)
