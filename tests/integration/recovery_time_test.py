#!/usr/bin/env python3
# From the death of a worker with 100 MB of state to the next finished step, and where the time goes.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recovery_time_test.py PROGRAM TUTTI [--kills N] [--state-mb M] [--workers N] [--transport auto|tcp] [--json FILE] [--log FILE]

`tutti run --max-restarts` starts the workers of `recovering_state`; one after the other is killed (SIGKILL) in a random moment. The new
process gets the state from another one's memory. Judged: exit code 0, the bits of a calm run of as many workers, and that no step is left out
and at most one repeated (a kill may keep a worker from saying one that is committed). The times are printed beside the goal (1.0 s, 500 MB/s) and not judged: what else runs on this machine decides about
them, too.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recovery_test  # noqa: E402

GOAL, GOAL_RATE = 1.0, 500
STEPS_PER_KILL = 8
# What is said on the way, by whom ("new": the process in the victim's place), and what it is the end of.
MILESTONES = [("found", "others", r"control: worker \d+ \(.*\) died"),
              ("process", "new", r"process is here"),
              ("joined", "new", r"strategy is made"),
              ("variables", "new", r"variables are made"),
              ("connected", "new", r"workers: rank \d+ of \d+"),
              ("state", "new", r"has the state of worker \d+: (\S+) MB in \S+ s, (\S+) MB/s"),
              ("goes on", "new", r"goes on after step (\d+)"),
              ("step", "any", r"finished step (\d+)$")]


class Job:
    """Lines with the moments at which they came, by worker."""

    def __init__(self, arguments, steps):
        self.program = arguments.program
        command = [arguments.tutti, "run", "-n", str(arguments.workers), "--max-restarts", "1000", "--", arguments.program,
                   "--steps", str(steps), "--state-mb", str(arguments.state_mb), "--transport", arguments.transport,
                   "--least-step-ms", str(arguments.least_step_ms)]
        self.lines, self.changed = [], threading.Condition()
        self.launcher = subprocess.Popen(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for text in self.launcher.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), text.rstrip("\n")))
                self.changed.notify_all()

    def fail(self, what):
        self.launcher.kill()
        sys.exit(f"FAILED: {what}\n" + "\n".join(f"{when:.3f} {text}" for when, text in self.lines[-80:]))

    def wait_for_step(self, number):
        """Or a later one: the line about a step is lost when its writer dies first."""
        when, finished = 0.0, 0
        while finished < number:
            when, match = self.wait_for(r"finished step (\d+)$", when, f"step {number}")
            finished = int(match.group(1))

    def wait_for(self, pattern, since, what, seconds=120.0):
        """(moment, match) of the first line with the pattern after a moment."""
        deadline, seen = time.monotonic() + seconds, 0
        with self.changed:
            while True:
                for when, text in self.lines[seen:]:
                    match = re.search(pattern, text) if when > since else None
                    if match:
                        return when, match
                seen = len(self.lines)
                if time.monotonic() > deadline or self.launcher.poll() is not None and not self.reader.is_alive():
                    self.fail(f"{what}: no line '{pattern}'")
                self.changed.wait(0.5)

    def pid_now(self, worker):
        """Of the process that runs the program as this worker; None: there is none at the moment."""
        for pid in recovery_test.pids_of_workers(self.launcher.pid, self.program):
            try:
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as variables:
                    if re.search(rf'"index": *{worker}\b', variables.read()):
                        return pid
            except OSError:  # it is gone again
                continue
        return None

    def pid_of(self, worker):
        return self.pid_now(worker) or self.fail(f"no process of worker {worker}")

    def end(self):
        """The hash that all workers have at the end."""
        code = self.launcher.wait(timeout=300)
        self.reader.join(timeout=10)
        hashes = [text.rpartition(" ")[2] for _, text in self.lines if re.search(r"\]: hash ", text)]
        if code != 0 or len(set(hashes)) != 1:
            self.fail(f"exit code {code}, hashes {hashes}")
        return hashes[0]

    def steps_of(self, worker):
        return [(when, int(text.rpartition(" ")[2])) for when, text in self.lines
                if text.startswith(f"[worker-{worker}]: finished step")]


def kill_one(job, victim, others):
    """Kills a worker; seconds since then, by milestone."""
    pid, moment = job.pid_of(victim), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    whose = {"new": rf"^\[worker-{victim}\]: .*", "others": rf"^\[worker-[{''.join(map(str, others))}]\]: .*", "any": ""}
    found = {}
    for name, who, pattern in MILESTONES:
        since = moment if name not in ("goes on", "step") else moment + found["state"]
        when, match = job.wait_for(whose[who] + pattern, since, f"worker {victim} was killed")
        found[name] = when - moment
        if name == "state":
            found["MB"], found["MB/s"] = float(match.group(1)), float(match.group(2))
        if name == "goes on":
            found["step after"] = int(match.group(1))
    return found


def print_table(kills):
    names = [name for name, _, _ in MILESTONES]
    print(f"  {'seconds since the kill':24}" + "".join(f"{name:>10}" for name in names) + f"{'MB/s':>8}")
    for kill in kills:
        who = f"worker {kill['victim']} after step {kill['step after']}"
        print(f"  {who:24}" + "".join(f"{kill[name]:10.3f}" for name in names) + f"{kill['MB/s']:8.0f}")
    times = sorted(kill["step"] for kill in kills)
    rates = sorted(kill["MB/s"] for kill in kills)
    print(f"  {kills[0]['MB']:.1f} MB: next step finished after {times[0]:.2f} / {times[len(times) // 2]:.2f} / {times[-1]:.2f} s "
          f"(least, median, most; goal {GOAL:.1f}), {rates[0]:.0f} MB/s at least (goal {GOAL_RATE})", flush=True)


def check_steps(job, worker, steps, kills):
    """As the worker said them: at most one is repeated, and none is left out but one per kill that was committed and not said yet: the
    victim may die, and the commit of another worker may end with the loss, in between."""
    previous, unsaid = 0, 0
    for _, step in job.steps_of(worker):
        unsaid += step == previous + 2
        if not previous <= step <= previous + 2 or unsaid > kills:
            job.fail(f"worker {worker}: step {step} came after step {previous}")
        previous = step
    if previous != steps:
        job.fail(f"worker {worker}: the last step was {previous}, expected {steps}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state-mb", type=float, default=100.0)
    parser.add_argument("--least-step-ms", type=int, default=50)
    parser.add_argument("--transport", choices=["auto", "tcp"], default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the times there")
    parser.add_argument("--log", help="write the lines of all workers there")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    steps = STEPS_PER_KILL * (arguments.kills + 1)
    calm = Job(arguments, steps).end()
    job, kills = Job(arguments, steps), []
    for number in range(arguments.kills):
        job.wait_for_step(STEPS_PER_KILL * number + 4)
        time.sleep(chance.uniform(0.0, 0.2))
        victim = 1 if number == 0 else chance.randrange(arguments.workers)
        others = [worker for worker in range(arguments.workers) if worker != victim]
        kills.append({"victim": victim, **kill_one(job, victim, others)})
    got = job.end()
    if arguments.log:
        with open(arguments.log, "w", encoding="utf-8") as file:
            file.writelines(f"{when:.3f} {text}\n" for when, text in job.lines)
    print_table(kills)
    if got != calm:
        job.fail(f"the bits differ: {calm} calm, {got} with {arguments.kills} kills")
    for worker in range(arguments.workers):
        check_steps(job, worker, steps, len(kills))
    print(f"  same      {got}  {arguments.kills} kills")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(kills, file, indent=1)


if __name__ == "__main__":
    main()
