#!/usr/bin/env python3
# `tutti run` names the process whose own error ended the job, whoever ends first, and each error is said once.
# SPDX-License-Identifier: Apache-2.0
"""Usage: blame_test.py TUTTI LONELY_CALL [COORDINATED_COUNTER]"""
import re
import subprocess
import sys

TUTTI, LONELY_CALL, COUNTER = (*sys.argv[1:], None)[:3]
TRIES = 5  # who ends first is a matter of luck


def play(*words):
    result = subprocess.run([TUTTI, "run", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return result.returncode, result.stdout


def require(condition, message, text):
    if not condition:
        sys.exit(f"FAILED: {message}\n{text[-6000:]}")


def own_lines(text):
    """Without the launcher's repetition of the last lines."""
    return [line for line in text.splitlines() if line.startswith("[")]


def check_own_error(workers):
    last = workers - 1
    for _ in range(TRIES):
        code, text = play("-n", str(workers), "--", LONELY_CALL, "--case", "own_error")
        require(code == 1, f"exit code {code}", text)
        require(f"tutti run: worker-{last} failed first: exited with code 1" in text, f"worker-{last} is not named first", text)
        require(text.count(f"[worker-{last}]: error: my own bug") == 2, "the cause is not among the last lines", text)
        for worker in range(last):
            said = re.findall(rf"^\[worker-{worker}\]: worker {worker} got (.*)$", text, re.MULTILINE)
            require(said == [f"ABORTED: worker {last}: ended by an exception; its log says which"]
                    or said and f"worker {last}: ended by an exception; its log says which" in said[0],
                    f"worker {worker} does not get the cause", text)
        logged = [line for line in own_lines(text) if "warning:" in line]
        require(not logged, "what programs say is logged, too", text)
    print(f"  an exception of one of {workers} workers: {TRIES} tries", flush=True)


def check_mismatch():
    """The sentence stands in the error of each worker (which lonely_call prints twice), and nowhere else."""
    _, text = play("-n", "2", "--", LONELY_CALL, "--case", "step")
    found = [line for line in own_lines(text) if "wait for each other" in line]
    expected = [rf"[worker-{worker}]: {said}" for worker in (0, 1) for said in (f"worker {worker} got ", "error: ")]
    require(len(found) == 4 and all(any(line.startswith(said) for line in found) for said in expected),
            f"expected the sentence 4 times, got {len(found)}", text)
    print("  a mismatch of calls", flush=True)


def check_chief():
    for _ in range(TRIES):
        code, text = play("--chief", "--workers", "2", "--ps", "1", "--", COUNTER, "--closures", "20", "--throws-at-end")
        require(code == 1, f"exit code {code}", text)
        require("tutti run: chief-0 failed first: exited with code 1" in text, "the chief is not named first", text)
        require(not re.search("warning: control: .*ended by an exception", text), "what programs say is logged, too", text)
    print(f"  an exception of the chief: {TRIES} tries", flush=True)


def main():
    check_own_error(2)
    check_own_error(3)
    check_mismatch()
    if COUNTER:
        check_chief()


if __name__ == "__main__":
    main()
