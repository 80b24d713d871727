#!/usr/bin/env python3
# Measures the time from the death of a worker with 100 MB of state to the next finished step, also
# if the worker's new process is killed.
# SPDX-License-Identifier: Apache-2.0
"""Usage: recovery_time_test.py PROGRAM TUTTI [--kills N] [--state-mb M] [--workers N] [--transport auto|tcp] [--json FILE] [--log FILE] [--again]

`tutti run --max-restarts` starts the workers of `recovering_state`. One worker after the other is killed at a random time, and its new
process gets the state from another worker's memory. With --again, the new process is killed, too, in each of PHASES;
--kills is the number of rounds. Expects exit code 0, results bit-identical to an undisturbed run's, at most one repeated step per kill,
no lost step, and with --again that no worker waits for a dead worker until a timeout. Times are printed but do not fail the test (goal: 1.0 s,
500 MB/s).
"""
import json
import os
import random
import re
import signal
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import Job, end_with, parse, require  # noqa: E402

GOAL, GOAL_RATE = 1.0, 500
STEPS_PER_KILL = 8
# Steps before each round of kills with --again: 1.3 s of steps of 50 ms.
STEPS_PER_ROUND = 26
STEPS_WITHOUT_END = 10**9
PATIENCE_IS_OVER = r"rank [\d, ]+ did not (answer|connect) "
# Lines written during a recovery: the phase that each line ends, its writer ("new": the victim's
# new process), and its pattern.
MILESTONES = [("found", "others", r"control: worker \d+ \(.*\) died"),
              ("process", "new", r"process is here"),
              ("joined", "new", r"strategy is made"),
              ("variables", "new", r"variables are made"),
              ("connected", "new", r"workers: rank \d+ of \d+"),
              ("state", "new", r"received the state of worker \d+: (\S+) MB in \S+ s, (\S+) MB/s"),
              ("continues", "new", r"continues after step (\d+)"),
              ("step", "any", r"finished step (\d+)$")]
# Last line that the new process writes before it is killed; "": it is killed after a random time.
PHASES = [("before it joined", r"process is here"), ("after it joined", r"strategy is made"), ("before it connected", r"variables are made"),
          ("after it connected", r"workers: rank \d+ of \d+"), ("with the state", r"received the state of worker \d+"), ("at a random time", "")]


class Workers(Job):
    def __init__(self, arguments, steps, least_step_ms, stop_file=""):
        self.program, self.steps = arguments.program, steps
        super().__init__([arguments.tutti, "run", "-n", str(arguments.workers), "--max-restarts", "1000", "--", arguments.program,
                          "--steps", str(steps), "--state-mb", str(arguments.state_mb), "--transport", arguments.transport,
                          "--least-step-ms", str(least_step_ms), "--stop-file", stop_file], log_copy=arguments.log if least_step_ms else None)

    def wait_for_step(self, number):
        """Waits for this step or a later step, because a line is lost if its writer dies first."""
        when, finished = 0.0, 0
        while finished < number:
            line = self.wait_for_line(r"finished step (\d+)$", when, f"step {number}")
            when, finished = line.time, int(line.match[1])

    def kill_worker(self, worker):
        return self.send(signal.SIGKILL, ("worker", worker))

    def hash(self):
        """Returns the hash that all workers have at the end."""
        found = set(re.findall(r"\]: hash (.*)", self.succeed()))
        require(len(found) == 1, f"expected equal hashes, got {found}", self.text())
        return found.pop()

    def check_steps(self, worker, kills):
        """Requires that at most one step is repeated, and that no step is missing except one per
        kill. That step was committed but not reported, because the victim died, or another worker's
        commit failed, in between."""
        previous, unsaid = 0, 0
        for step in re.findall(rf"^\[worker-{worker}\]: finished step (\d+)$", self.text(), re.MULTILINE):
            step, last = int(step), previous
            unsaid += step == last + 2
            require(last <= step <= last + 2 and unsaid <= kills, f"worker {worker}: step {step} came after step {last}", self.text())
            previous = step
        require(previous == self.steps, f"worker {worker}: the last step was {previous}, expected {self.steps}")


def kill_one(job, victim, others):
    """Kills a worker; returns the seconds from the kill to each milestone."""
    moment = job.kill_worker(victim)
    whose = {"new": rf"^\[worker-{victim}\]: .*", "others": rf"^\[worker-[{''.join(map(str, others))}]\]: .*", "any": ""}
    found = {"victim": victim}
    for name, who, pattern in MILESTONES:
        since = moment if name not in ("continues", "step") else moment + found["state"]
        line = job.wait_for_line(whose[who] + pattern, since, f"'{name}' in the recovery of worker {victim}")
        found[name] = line.time - moment
        if name == "state":
            found["MB"], found["MB/s"] = float(line.match[1]), float(line.match[2])
        if name == "continues":
            found["step after"] = int(line.match[1])
    return found


def print_table(kills):
    names = [name for name, _, _ in MILESTONES]
    print(f"  {'seconds since the kill':24}" + "".join(f"{name:>10}" for name in names) + f"{'MB/s':>8}")
    for kill in kills:
        who = f"worker {kill['victim']} after step {kill['step after']}"
        print(f"  {who:24}" + "".join(f"{kill[name]:10.3f}" for name in names) + f"{kill['MB/s']:8.0f}")
    times, rates = sorted(kill["step"] for kill in kills), sorted(kill["MB/s"] for kill in kills)
    print(f"  {kills[0]['MB']:.1f} MB: next step finished after {times[0]:.2f} / {times[len(times) // 2]:.2f} / {times[-1]:.2f} s "
          f"(least, median, most; goal {GOAL:.1f}), {rates[0]:.0f} MB/s at least (goal {GOAL_RATE})", flush=True)


def kill_each(job, arguments, chance):
    kills = []
    for number in range(arguments.kills):
        job.wait_for_step(STEPS_PER_KILL * number + 4)
        time.sleep(chance.uniform(0.0, 0.2))
        victim = 1 if number == 0 else chance.randrange(arguments.workers)
        kills.append(kill_one(job, victim, [worker for worker in range(arguments.workers) if worker != victim]))
    print_table(kills)
    return kills


def wait_for_next_step(job, victim, since):
    """Returns the seconds until a worker has finished a step after the victim's last process resumed."""
    went_on = job.wait_for_line(rf"^\[worker-{victim}\]: .*continues after step (\d+)", since, f"worker {victim} continuing")
    # Other workers' lines may arrive slightly before the victim's line.
    return job.wait_for_line(rf"finished step {int(went_on.match[1]) + 1}$", went_on.time - 0.2, "the next step").time - since


def last_step(job):
    return max(map(int, re.findall(r"finished step (\d+)$", job.text(), re.MULTILINE)), default=0)


def kill_again(job, plan, chance):
    for name, pattern, victim in plan:
        job.wait_for_step(last_step(job) + STEPS_PER_ROUND)
        first = job.pid_of("worker", victim, job.program)
        begin = job.kill_worker(victim)
        if name != "once":
            # The new process exists for a while before it writes its first line.
            job.wait_for(lambda: job.pids(job.program).get(("worker", victim), first) != first, "a new process")
            if pattern:
                job.wait_for_line(rf"^\[worker-{victim}\]: .*{pattern}", begin, f"a line of worker {victim}'s new process")
            else:
                time.sleep(chance.uniform(0.0, 0.6))
            begin = job.kill_worker(victim)
        print(f"  worker {victim}, killed {name}: next step after {wait_for_next_step(job, victim, begin):.2f} s (goal {GOAL})", flush=True)


def require_same_bits(calm, got, job):
    require(got == calm, f"expected hash {calm} of an undisturbed run, got {got}", job.text())


def killed_again(arguments, plan, chance):
    """Trains until all kills are done, because the number of steps during the kills depends on the
    machine. The undisturbed run makes the same number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        stop_file = os.path.join(folder, "stop")
        job = Workers(arguments, STEPS_WITHOUT_END, arguments.least_step_ms, stop_file)
        kill_again(job, plan, chance)
        open(stop_file, "w", encoding="utf-8").close()
        got = job.hash()
    require_same_bits(Workers(arguments, last_step(job), 0).hash(), got, job)
    require(not job.count(PATIENCE_IS_OVER), "a worker waited until a timeout", job.text())


def main():
    arguments = parse(__doc__, "program", "tutti", kills=0, workers=0, state_mb=0.0, least_step_ms=50, transport="auto", seed=1,
                      json=None, log=None, again=False)
    chance = random.Random(arguments.seed)
    arguments.kills = arguments.kills or (1 if arguments.again else 2)
    arguments.workers = arguments.workers or (3 if arguments.again else 2)
    arguments.state_mb = arguments.state_mb or (10.0 if arguments.again else 100.0)
    # When ranks connect, all others wait for the last worker, and the first worker waits for all.
    victims = [arguments.workers - 1, 0]
    plan = [("once", "", victim) for victim in victims]
    plan += [(f"again {name}", pattern, victim) for name, pattern in PHASES * arguments.kills for victim in victims]
    if arguments.again:
        return killed_again(arguments, plan, chance)
    steps = STEPS_PER_KILL * (arguments.kills + 1)
    calm = Workers(arguments, steps, 0).hash()
    job = Workers(arguments, steps, arguments.least_step_ms)
    kills = kill_each(job, arguments, chance)
    got = job.hash()
    require_same_bits(calm, got, job)
    for worker in range(arguments.workers):
        job.check_steps(worker, len(kills))
    print(f"  same      {got}  {arguments.kills} kills")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(kills, file, indent=1)


if __name__ == "__main__":
    end_with(main)
