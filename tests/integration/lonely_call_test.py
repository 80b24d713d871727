#!/usr/bin/env python3
# One worker makes a collective call alone, or throws: the job ends, and errors name the calls, the
# lines, and the process that failed first.
# SPDX-License-Identifier: Apache-2.0
"""Usage: lonely_call_test.py PROGRAM TUTTI COUNTER [--mpirun MPIRUN]

In PROGRAM (`lonely_call`), worker 0 requests a sum after a step, within a step, or in a callback of fit(), while the other workers
continue or have finished. Long before the timeout of 10 minutes, each worker must get an error that names the waiting workers, their calls
and the lines of PROGRAM. If the last worker of PROGRAM or the chief of COUNTER (`coordinated_counter`) throws, `tutti run` names that
process as the first failure, no matter which process exits first, and prints each error once.
"""
import os
import re
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import MPI, Job, end_with, parse, require  # noqa: E402

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lonely_call.cc")
LONGEST = 300  # seconds; the timeout of a collective is 600
TRIES = 5  # which process ends first is random
CASES = ["step", "replica", "fit", "end"]


def play(launcher, *words):
    """Runs a command and returns its output and exit code."""
    job = Job([*launcher, *words], {} if "run" in launcher else MPI)
    code = job.finish(LONGEST)
    return job.text(), code


def lines_of(case):
    """Returns the numbers of the lines at which workers wait, by role: 0 is the chief, 1 is any other worker."""
    found = {}
    with open(SOURCE, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            for role in re.findall(rf"\b{case} (\d)", line.partition("// waits: ")[2]):
                found[int(role)] = number
    return found


def check_case(launcher, workers, case, program):
    begin, is_mpirun = time.monotonic(), launcher[-1] != "run"
    text, code = play(launcher, "-n", str(workers), *([] if is_mpirun else ["--"]), program, "--case", case)
    print(f"  {os.path.basename(launcher[0]):7} {workers} workers, {case:8} ended after {time.monotonic() - begin:.1f} s", flush=True)
    require(code != 0, f"{case}: exit code {code}; expected an error", text)
    got = {int(worker): rest for worker, rest in re.findall(r"worker (\d) got (.*)", text)}
    # When the first worker ends with an error, mpirun ends the remaining workers, perhaps before
    # they print theirs.
    told = [worker for worker in got if got[worker] != "no error"] if is_mpirun and got else range(workers)
    for worker in [0] if case == "end" else told:  # the other workers have finished by then
        said = got.get(worker, "nothing")
        if case == "end":
            # Either rank 1's connection reports the loss at once, or the control server reports it
            # after 250 ms.
            left = r"rank 1 .*(has left the group of|has closed its transport|closed the connection).*; rank 0 was in"
            expected = rf"{left}|worker 1 .*has left the job in step \d+, but worker 0 waits in"
        else:
            expected = r"worker 0, (worker 1, )?worker \d wait for each other"  # another worker may wait a moment later
        require(re.search(expected, said), f"{case}: worker {worker} does not get '{expected}': {said}", text)
        for line in lines_of(case).values():
            require(f"lonely_call.cc:{line}" in said, f"{case}: worker {worker} does not get line {line}: {said}", text)
        if not is_mpirun and case == "step" and workers == 2:
            # Each worker prints its error, with "wait for each other", twice. Only the launcher's
            # last lines repeat these words.
            found = [line for line in text.splitlines() if line.startswith("[") and "wait for each other" in line]
            expected = [rf"[worker-{each}]: {said}" for each in (0, 1) for said in (f"worker {each} got ", "error: ")]
            require(len(found) == 4 and all(any(line.startswith(said) for line in found) for said in expected),
                    f"expected 4 lines of workers with 'wait for each other', got {len(found)}", text)


def check_own_error(tutti, first, *words):
    """Requires that `first` is named with its exit code, and that no warning in the log repeats the error."""
    for _ in range(TRIES):
        text, code = play([tutti, "run", *words])
        require(code == 1, f"exit code {code}", text)
        require(f"tutti run: {first} failed first: exited with code 1" in text, f"{first} is not named first", text)
        repeats = "warning: control: .*ended by an exception" if first == "chief-0" else "^\\[.*warning:"
        require(not re.search(repeats, text, re.MULTILINE), "a warning in the log repeats an error that a program printed", text)
        yield text
    print(f"  an exception of {first}: {TRIES} tries", flush=True)


def main():
    arguments = parse(__doc__, "program", "tutti", "counter", mpirun=None)
    program, run = arguments.program, [arguments.tutti, "run"]
    for case in CASES:
        check_case(run, 2, case, program)
    check_case(run, 3, "step", program)
    for case in ("step", "end") if arguments.mpirun else ():
        check_case([arguments.mpirun], 2, case, program)
    for workers in (2, 3):
        last = workers - 1
        for text in check_own_error(arguments.tutti, f"worker-{last}", "-n", str(workers), "--", program, "--case", "own_error"):
            # The launcher repeats the cause only if later lines have scrolled it away.
            require(text.count(f"[worker-{last}]: error: my own bug") in (1, 2), "the cause is not shown", text)
            for worker in range(last):
                require(re.search(rf"^\[worker-{worker}\]: worker {worker} got .*worker {last}: ended by an exception; see its log",
                                  text, re.MULTILINE), f"worker {worker} does not get the cause", text)
    for _ in check_own_error(arguments.tutti, "chief-0", "--chief", "--workers", "2", "--ps", "1", "--", arguments.counter, "--closures", "20",
                             "--throws-at-end"):
        pass


if __name__ == "__main__":
    end_with(main)
