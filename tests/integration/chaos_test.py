#!/usr/bin/env python3
# Kills and stops processes, resets connections and flips bits during one training run. Requires the
# bits of an undisturbed run, and prints the time of each recovery.
# SPDX-License-Identifier: Apache-2.0
"""Usage: chaos_test.py PROGRAM TUTTI [--faults N] [--seed N] [--workers N] [--json FILE]

`tutti run --max-restarts` starts the workers; all their connections pass through a proxy. The seed determines the faults, their steps
and victims. Expects exit code 0, the weights, losses and optimizer state of an undisturbed process, no lost step, at most one repeated
step per fault, and a line that names each lost worker. Times and false alarms are printed but do not fail the test; control_rules_test.cc
tests them on a simulated clock.
"""
import json
import tempfile

import chaos_run  # noqa: E402  adds the path of the helpers
import chaos_faults  # noqa: E402
from processes import end_with, parse, require, run_mirrored  # noqa: E402

FLAGS = ["--batch-size", "60", "--train-examples", "12000", "--regularized", "--seed", "1", "--epochs", "1000"]
FIRST_STEP, STEPS_PER_FAULT, STEPS_AFTERWARDS = 10, 12, 150


def steps_of(log):
    """Returns steps and losses in the order in which the chief finished them."""
    steps = []
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if "loss" in entry:
                steps.append((entry["step"], entry["loss"]))
    return steps


def check_steps(entries, steps, outcomes):
    """Requires that every step was finished, and that repeated steps had equal losses."""
    mistakes = []
    losses, previous, repeated = {}, 0, 0
    for step, loss in entries:
        if losses.setdefault(step, loss) != loss:
            mistakes.append(f"step {step} had the loss {losses[step]}, and {loss} when it was repeated")
        if step > previous + 1:
            mistakes.append(f"step {step} came after step {previous}")
        if step < previous:
            mistakes.append(f"training rolled back from step {previous} to step {step}; expected to repeat only the step in flight")
        repeated += step == previous
        previous = step
    if set(losses) != set(range(1, steps + 1)):
        mistakes.append(f"{len(losses)} steps were finished; expected {steps}")
    going_back = sum(outcome.recoveries for outcome in outcomes)
    print(f"  {steps} steps, {going_back} rollbacks to a commit, {repeated} steps repeated, {steps - len(losses)} lost")
    return mistakes


def spread(values):
    values = sorted(values)
    if not values:
        return "-"
    return f"{values[0]:.2f}  {values[len(values) // 2]:.2f}  {values[-1]:.2f}"


def print_table(outcomes):
    print(f"  {'fault':34} {'count':>5}   {'named after (s)':18}   {'next step after (s)':18}")
    print(f"  {'':34} {'':5}   {'min   median max':18}   {'min   median max':18}")
    for kind in sorted({outcome.kind for outcome in outcomes}, key=chaos_faults.KINDS.index):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        named = spread([o.named for o in of_kind if o.named is not None])
        step = spread([o.next_step for o in of_kind])
        print(f"  {kind:34} {len(of_kind):5}   {named:18}   {step:18}", flush=True)


def main():
    arguments = parse(__doc__, "program", "tutti", faults=10, seed=1, workers=3, json=None, log=None)
    require(arguments.workers >= 3 and arguments.faults >= 1, "expected at least 3 workers (one keeps the state when two die) and one fault")
    schedule = chaos_faults.make_schedule(arguments.seed, arguments.faults, arguments.workers, FIRST_STEP, STEPS_PER_FAULT)
    steps = FIRST_STEP + STEPS_PER_FAULT * arguments.faults + STEPS_AFTERWARDS
    flags, outcomes = FLAGS + ["--steps", str(steps)], []
    print(f"  {arguments.faults} faults in {steps} steps of {arguments.workers} workers; "
          f"repeat with --faults {arguments.faults} --seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        calm = run_mirrored(arguments.program, arguments.workers, flags, folder, timeout=1200)
        run = chaos_run.Run(arguments.tutti, arguments.program, arguments.workers, flags, folder, arguments.log)

        def look():
            print_table(outcomes)
            mistakes, alarms = check_steps(steps_of(run.log), steps, outcomes), chaos_faults.false_alarms(run)
            print("".join(f"  a false alarm, which does not fail the test: {line}\n" for line in alarms), end="")
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as file:
                    json.dump({"seed": arguments.seed, "steps": steps, "mistakes": mistakes,
                               "faults": [vars(outcome) for outcome in outcomes]}, file, indent=1)
            return mistakes, f"{len(outcomes)} faults, {len(alarms)} false alarms, "

        def disturb():
            outcomes.extend(chaos_faults.inject(run, fault) for fault in schedule)
            return look

        run.compare(disturb, calm)


if __name__ == "__main__":
    end_with(main)
