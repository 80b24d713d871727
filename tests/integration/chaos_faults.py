# Faults of a chaos run: selection by seed, injection, and expected consequences.
# SPDX-License-Identifier: Apache-2.0
import random
import re
import signal
import time

import tcp_proxy  # chaos_run sets its path
from processes import Failure

# Weights of the faults, in percent.
WEIGHTS = {
    "kill": 26,
    "kill two": 8,
    "kill, again while recovering": 6,
    "kill, reset of a new connection": 4,
    "kill, bit flip on a new connection": 4,
    "stop until named": 6,
    "pulse (stop of 0.3 to 1.5 s)": 12,
    "reset": 12,
    "bit flip": 12,
    "reset to the control server": 10,  # no bit flips, because the connection is a UNIX-domain socket
}
KINDS = list(WEIGHTS)
KILL, KILL_TWO, KILL_AGAIN, KILL_RESET, KILL_FLIP, STOP, PULSE, RESET, FLIP, CONTROL_RESET = KINDS
# Line in which a worker logs why it rolls back: it detected the fault, or it was notified.
CONNECTION_BROKE = r"worker \d+: .*(disconnected: |is damaged|lost its connection to).*; will roll back to the last commit"
AFTER_A_STOP = ["is continued", "is killed", "is left to the launcher"]


class Fault:
    def __init__(self, number, kind, step, victims, seed):
        self.number, self.kind, self.step, self.victims = number, kind, step, victims
        self.chance = random.Random(seed)

    def __str__(self):
        return f"fault {self.number} in step {self.step}: {self.kind}, worker {' and '.join(map(str, self.victims))}"


class Outcome:
    """Times of the consequences, in seconds since the fault."""

    def __init__(self, fault):
        self.kind, self.number, self.step, self.victims = fault.kind, fault.number, fault.step, fault.victims
        self.named, self.next_step, self.recoveries, self.note = None, 0.0, 0, ""


def make_schedule(seed, count, num_workers, first_step, steps_per_fault):
    """Returns a schedule that depends only on the arguments. The chief is killed first."""
    chance = random.Random(seed)
    numbers = {kind: weight * count // 100 for kind, weight in WEIGHTS.items()}
    by_rest = sorted(KINDS, key=lambda kind: (-(WEIGHTS[kind] * count % 100), chance.random()))
    for kind in by_rest[:count - sum(numbers.values())]:
        numbers[kind] += 1
    kinds = [kind for kind in KINDS for _ in range(numbers[kind])]
    chance.shuffle(kinds)
    faults = []
    for number, kind in enumerate(kinds, start=1):
        victims = chance.sample(range(num_workers), 2 if kind in (KILL_TWO, KILL_AGAIN) else 1)
        if kind == KILL and all(fault.kind != KILL for fault in faults):
            victims = [0]
        step = first_step + (number - 1) * steps_per_fault + chance.randrange(steps_per_fault)
        faults.append(Fault(number, kind, step, victims, chance.random()))
    return faults


def inject(run, fault):
    run.wait_for_step(fault.step)
    time.sleep(fault.chance.uniform(0.0, 0.05))  # a random moment of a step
    outcome = Outcome(fault)
    begin = time.monotonic()
    try:
        FUNCTIONS[fault.kind](run, fault, outcome)
    except Failure as failure:
        raise Failure(f"{fault}, {time.monotonic() - begin:.1f} s ago: {failure}") from failure
    note = f", {outcome.note}" if outcome.note else ""
    named = "" if outcome.named is None else f"named after {outcome.named:.2f} s, "
    print(f"  {fault}{note}: {named}next step after {outcome.next_step:.2f} s", flush=True)
    return outcome


def line_that_names(worker, pid, what="died|is stopped|is silent"):
    """Returns the pattern of a line in which another worker names this worker."""
    return rf"^\[worker-(?!{worker}\])\d+\]: .*control: worker {worker} \(.*pid {pid}\) ({what})"


def wait_until_named(run, worker, pid, since):
    return run.wait_for_line(line_that_names(worker, pid), since, f"a line that names worker {worker}, pid {pid}").time


def kill(run, fault, outcome):
    """Kills all victims at the same time."""
    pids = {worker: run.pid_of_worker(worker) for worker in fault.victims}
    moments = {worker: run.hit_process(pid, signal.SIGKILL) for worker, pid in pids.items()}
    follow_death(run, outcome, pids, moments)


def follow_death(run, outcome, pids, moments):
    outcome.named = max(wait_until_named(run, worker, pid, moments[worker]) - moments[worker] for worker, pid in pids.items())
    outcome.next_step = run.wait_for_recovery(max(moments.values())) - max(moments.values())
    outcome.recoveries = 1


def kill_again(run, fault, outcome):
    """Kills a second process, possibly the restarted one, during or shortly after the recovery from the first kill."""
    first, second = fault.victims if fault.chance.random() < 0.7 else fault.victims[:1] * 2
    pids, moments = {}, {}
    pid = run.pid_of_worker(first)
    begin = run.hit_process(pid, signal.SIGKILL)
    if first == second:  # kills the restarted process
        time.sleep(0.02)
        worker = ("worker", second)
        run.wait_for(lambda: run.pids(run.program).get(worker, pid) != pid, "a new process")
        pids[second] = run.pid_of_worker(second)
        time.sleep(fault.chance.uniform(0.0, 0.6))
    else:
        time.sleep(fault.chance.uniform(0.0, 0.8))
        pids[first], moments[first] = pid, begin
        pids[second] = run.pid_of_worker(second)
    moments[second] = run.hit_process(pids[second], signal.SIGKILL)
    outcome.note = "its new process, too" if first == second else "one after the other"
    if first == second:  # the second process may die before it joins, which is not reported
        outcome.named = wait_until_named(run, first, pid, begin) - begin
        outcome.next_step = run.wait_for_recovery(moments[second]) - moments[second]
        outcome.recoveries = 2
    else:
        follow_death(run, outcome, pids, moments)
        outcome.recoveries = 2


def kill_and_damage(run, fault, outcome):
    """Kills a worker and damages a new connection. Damage before the handshake's last message
    restarts the handshake; later damage breaks the connection, and all workers roll back again."""
    kind = "reset" if fault.kind == KILL_RESET else "flip"
    place = fault.chance.randrange(300) if fault.chance.random() < 0.7 else 1500 + fault.chance.randrange(200_000)
    damage = tcp_proxy.Damage(kind, place, fault.chance.randrange(8))
    run.proxy.damage_next(run.data_routes[fault.chance.randrange(run.num_workers - 1)], damage)
    begin = time.monotonic()
    kill(run, fault, outcome)
    run.wait_for(lambda: damage.at, "the proxy damaging a connection")
    outcome.note = damage.where
    outcome.next_step = max(outcome.next_step, run.wait_for_recovery(damage.at) - begin)


def stop(run, fault, outcome):
    worker = fault.victims[0]
    pid = run.pid_of_worker(worker)
    begin = run.hit_process(pid, signal.SIGSTOP)
    named = wait_until_named(run, worker, pid, begin)
    outcome.named = named - begin
    outcome.note = fault.chance.choice(AFTER_A_STOP)
    time.sleep(fault.chance.uniform(0.0, 0.5))
    if outcome.note == "is continued":
        run.hit_process(pid, signal.SIGCONT)
    elif outcome.note == "is killed":
        run.hit_process(pid, signal.SIGKILL)
    outcome.next_step = run.wait_for_recovery(begin) - begin
    outcome.recoveries = 1


def pulse(run, fault, outcome):
    """Stops a worker for less than the limit, so no worker is declared lost unless the machine delays it further."""
    worker, length = fault.victims[0], fault.chance.uniform(0.3, 1.5)
    pid = run.pid_of_worker(worker)
    begin = run.hit_process(pid, signal.SIGSTOP, is_deadly=False)
    time.sleep(length)
    end = run.hit_process(pid, signal.SIGCONT)
    outcome.note = f"{end - begin:.2f} s"
    given_up = line_that_names(worker, pid)
    outcome_of = run.wait_for(lambda: run.find_line(given_up, begin) or (run.steps[-1].time > end and run.steps[-1]),
                              "a step after a pulse")
    if not hasattr(outcome_of, "text"):
        outcome.next_step = run.wait_for_next_step(end) - begin
        return
    run.alarms.append(outcome_of.text)
    run.hit.add(pid)
    outcome.note += f", declared lost: this machine was {run.most_late_since(begin - 0.3):.2f} s late"
    outcome.next_step = run.wait_for_recovery(begin) - begin
    outcome.recoveries = 1


def damage_data(run, fault, outcome):
    """Damages a connection between two healthy workers; all workers repeat the step."""
    kind = "reset" if fault.kind == RESET else "flip"
    damage = tcp_proxy.Damage(kind, fault.chance.randrange(500_000), fault.chance.randrange(8))
    run.damage(fault.chance, damage, run.data_routes)
    outcome.note = damage.where
    outcome.named = run.wait_for_line(CONNECTION_BROKE, damage.at, "a line about the broken connection").time - damage.at
    outcome.next_step = run.wait_for_recovery(damage.at) - damage.at
    outcome.recoveries = 1


def damage_control(run, fault, outcome):
    """Damages a control connection. This affects only heartbeats, for which training does not wait."""
    worker = fault.victims[0]
    damage = tcp_proxy.Damage("reset", fault.chance.randrange(400), fault.chance.randrange(8))
    pid = run.pid_of_worker(worker)
    run.damage(fault.chance, damage, [run.control_routes[worker]])
    outcome.note = damage.where
    outcome.named = run.wait_for_line(rf"^\[worker-{worker}\]: .*is connected to the control server .* again", damage.at,
                                      "a line about the new connection").time - damage.at
    outcome.next_step = run.wait_for_next_step(damage.at) - damage.at
    if run.pid_of_worker(worker) != pid:
        raise Failure(f"worker {worker} was restarted")


FUNCTIONS = {KILL: kill, KILL_TWO: kill, KILL_AGAIN: kill_again, KILL_RESET: kill_and_damage, KILL_FLIP: kill_and_damage, STOP: stop,
             PULSE: pulse, RESET: damage_data, FLIP: damage_data, CONTROL_RESET: damage_control}


def false_alarms(run):
    """Returns the log lines that declare a process lost although no fault hit it."""
    found = (re.search(r"control: worker \d+ \(.*pid (\d+)\) (died|is stopped|is silent)", line.text) for line in run.lines)
    return run.alarms + [match.string for match in found if match and int(match.group(1)) not in run.hit]
