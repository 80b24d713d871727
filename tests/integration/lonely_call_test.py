#!/usr/bin/env python3
# A collective call that one worker alone makes ends on all of them, with names, calls and the user's lines, not at the timeout.
# SPDX-License-Identifier: Apache-2.0
"""Usage: lonely_call_test.py PROGRAM TUTTI [--mpirun MPIRUN]

PROGRAM is `lonely_call`: worker 0 asks for a sum after a step, within a step, or in a callback of fit(), and the others go on to sums of
gradients; or these have come to their end, and left. Each waits for another in another group of calls, so that no call is compared with
another one. Every worker must get an error that names who waits, what in, and the lines of PROGRAM (not tutti's own), long before the timeout
of 10 minutes.
"""
import argparse
import os
import re
import subprocess
import sys
import time

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lonely_call.cc")
LONGEST = 300  # seconds; the timeout of a collective is 600
CASES = ["step", "replica", "fit", "end"]


def lines_of(case):
    """By role, 0 the chief and 1 the others: the line where it waits."""
    found = {}
    with open(SOURCE, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            for role in re.findall(rf"\b{case} (\d)", line.partition("// waits: ")[2]):
                found[int(role)] = number
    return found


def mistake(case, workers, code, text, ends_others):
    """Nothing, or what is wrong with how the job ended."""
    if code in (0, None):
        return f"exit code {code}; expected an error"
    got = {int(worker): rest for worker, rest in re.findall(r"worker (\d) got (.*)", text)}
    # mpirun ends the others when the first one has ended with an error, perhaps before they say theirs.
    told = [worker for worker in got if got[worker] != "no error"] if ends_others and got else range(workers)
    for worker in [0] if case == "end" else told:  # the others have come to their end by then
        said = got.get(worker, "nothing")
        if case == "end":
            # Its connection tells at once; the control server, after 250 ms, where that does not.
            left = r"rank 1 .*(has left the group of|has closed its transport|closed the connection).*; rank 0 was in"
            if not re.search(rf"{left}|worker 1 .*has left the job in step \d+, but worker 0 waits in", said):
                return f"worker {worker} does not hear who has left: {said}"
        elif not re.search(r"worker 0, (worker 1, )?worker \d wait for each other", said):  # others may come a moment later
            return f"worker {worker} does not hear who waits for whom: {said}"
        for line in lines_of(case).values():
            if f"lonely_call.cc:{line}" not in said:
                return f"worker {worker} does not hear of line {line}: {said}"
    return None


def play(program, launcher, workers, case):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_base_warn_component_unused": "0"}
    command = launcher + ["-n", str(workers)] + (["--"] if launcher[-1] == "run" else []) + [program, "--case", case]
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text, code = process.communicate(timeout=LONGEST)[0], process.returncode
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher ends its processes
        text, code = process.communicate()[0], None
    wrong = mistake(case, workers, code, text, ends_others=launcher[-1] != "run")
    print(f"  {os.path.basename(launcher[0]):7} {workers} workers, {case:8} ended after {time.monotonic() - begin:.1f} s", flush=True)
    return f"{' '.join(command)}: {wrong}\n{text[-3000:]}" if wrong else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--mpirun")
    arguments = parser.parse_args()
    runs = [([arguments.tutti, "run"], 2, case) for case in CASES] + [([arguments.tutti, "run"], 3, "step")]
    if arguments.mpirun:
        runs += [([arguments.mpirun], 2, case) for case in ("step", "end")]
    mistakes = [found for found in (play(arguments.program, *run) for run in runs) if found]
    if mistakes:
        sys.exit("FAILED:\n" + "\n".join(mistakes))


if __name__ == "__main__":
    main()
