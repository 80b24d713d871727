#!/usr/bin/env python3
# A worker's new process is killed, too, while it comes up: training goes on as after one kill.
# SPDX-License-Identifier: Apache-2.0
"""Usage: killed_again_test.py PROGRAM TUTTI [--rounds N] [--workers N] [--state-mb M] [--transport auto|tcp] [--seed N] [--log FILE]

`tutti run --max-restarts` starts the workers of `recovering_state`. A worker is killed (SIGKILL); its new process is killed when it has come
as far as PHASES say, or after a random time; the next one takes the place. Judged: exit code 0, the bits of a calm run, a next step after
each second kill, and that nobody waits out a patience with connections for a worker of which the job knows that it is dead: a line would
say so. The times (goal: 1.0 s) are printed and not judged.
"""
import argparse
import os
import random
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recovery_time_test as recovery  # noqa: E402

PATIENCE_IS_OVER = r"rank \d+ did not (answer|come) within "
# The launcher waits before it starts a process again whose predecessors lived for less than a second.
STEPS_PER_ROUND, STEP_MS = 26, 50
# What the new process has said when it dies; "": it dies after a random time.
PHASES = [("not yet in the job", r"process is here"),
          ("in the job", r"strategy is made"),
          ("about to connect", r"variables are made"),
          ("connected", r"workers: rank \d+ of \d+"),
          ("in possession of the state", r"has the state of worker \d+"),
          ("anywhere", "")]


def kill(pid):
    moment = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return moment


def new_process(job, victim, old, since):
    """Its pid, when it runs the program; nothing is said so early."""
    deadline = since + 60
    while time.monotonic() < deadline:
        pid = job.pid_now(victim)
        if pid is not None and pid != old:
            return pid
        time.sleep(0.002)
    return job.fail(f"worker {victim} was killed, and no new process came")


def wait_for_next_step(job, victim, since):
    """Seconds until somebody has finished a step after the victim's last process went on."""
    went_on, match = job.wait_for(rf"^\[worker-{victim}\]: .*goes on after step (\d+)", since, f"worker {victim} was killed")
    # Lines of others may come a little earlier.
    when, _ = job.wait_for(rf"finished step {int(match.group(1)) + 1}$", went_on - 0.2, "the next step")
    return when - since


def one_round(job, victim, pattern, chance):
    first = job.pid_of(victim)
    begin = kill(first)
    second = new_process(job, victim, first, begin)
    if pattern:
        job.wait_for(rf"^\[worker-{victim}\]: .*{pattern}", begin, f"worker {victim}, its new process")
    else:
        time.sleep(chance.uniform(0.0, 0.6))
    return wait_for_next_step(job, victim, kill(second))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--rounds", type=int, default=1, help="of each phase, for the first and the last worker")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--state-mb", type=float, default=10.0)
    parser.add_argument("--transport", choices=["auto", "tcp"], default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="write the lines of all workers there")
    return parser.parse_args()


def main():
    arguments = parse()
    chance = random.Random(arguments.seed)
    # All others wait for the last worker; the first one waits for all.
    victims = [arguments.workers - 1, 0]
    plan = [(name, pattern, victim) for _ in range(arguments.rounds) for name, pattern in PHASES for victim in victims]
    steps = STEPS_PER_ROUND * (len(plan) + len(victims) + 1)
    arguments.least_step_ms = 0
    calm = recovery.Job(arguments, steps).end()
    arguments.least_step_ms = STEP_MS
    job, step, single, found = recovery.Job(arguments, steps), 0, [], []
    for victim in victims:
        job.wait_for_step(step := step + STEPS_PER_ROUND)
        single.append(wait_for_next_step(job, victim, kill(job.pid_of(victim))))
    for name, pattern, victim in plan:
        job.wait_for_step(step := step + STEPS_PER_ROUND)
        found.append((one_round(job, victim, pattern, chance), name, victim))
        print(f"  worker {victim}, killed again when it was {name}: next step after {found[-1][0]:.2f} s", flush=True)
    got = job.end()
    if arguments.log:
        with open(arguments.log, "w", encoding="utf-8") as file:
            file.writelines(f"{when:.3f} {text}\n" for when, text in job.lines)
    print(f"  one kill: {min(single):.2f} to {max(single):.2f} s; killed again: at most {max(found)[0]:.2f} s (goal 1.0)")
    if got != calm:
        job.fail(f"the bits differ: {calm} calm, {got} with kills")
    waited = [text for _, text in job.lines if re.search(PATIENCE_IS_OVER, text)]
    if waited:
        job.fail(f"a patience was waited out: {waited[0]}")
    print(f"  same      {got}  {len(found)} second kills")


if __name__ == "__main__":
    main()
