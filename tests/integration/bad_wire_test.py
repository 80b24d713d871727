#!/usr/bin/env python3
# Trains through a proxy that delays, loses, stalls and damages data, and resets connections; the
# results must be bit-identical to those of an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: bad_wire_test.py PROGRAM TUTTI [--full] [--log FILE]

`tutti run` starts the workers. Each connection between two workers, and to the control server, passes through a proxy, which
delays each chunk of data by 20 +- 10 ms and keeps the order; 1 % of the chunks are lost and resent 0.2 s later. Three faults only slow
training down: for some seconds 10 % of the chunks are lost; for 3.5 s no data arrives between two workers, or between a worker and the
control server. Two faults break a connection, and all workers repeat the step once: a reset of a sender whose data still arrives, and a
flipped bit. False alarms are printed but do not fail the test. With --full, the network is bad from the start, and there are three
workers, more faults, and a control connection without data for 8 s. This exceeds the limit (docs/decisions/0026), so the worker is
replaced, and the results stay bit-identical.
"""
import random
import tempfile
import time

import chaos_run  # noqa: E402  adds the path of the helpers
import chaos_faults  # noqa: E402
import tcp_proxy  # noqa: E402
from processes import end_with, parse, run_mirrored  # noqa: E402

FLAGS = ["--batch-size", "60", "--train-examples", "6000", "--seed", "1", "--epochs", "1000"]
DELAY, JITTER, LOSS = 0.020, 0.010, 0.01
WENT_BACK = "worker 0: continues after step "


class Weather:
    """Network faults, each of which starts at a random moment of a step."""

    def __init__(self, run, workers, loss_seconds):
        self.run, self.workers, self.loss_seconds = run, workers, loss_seconds
        self.chance = random.Random(1)
        self.wire = tcp_proxy.Wire(DELAY, JITTER, LOSS)
        self.routes = run.data_routes + run.control_routes
        run.proxy.set_wire(self.routes, self.wire)
        self.pair = [run.data_routes[workers - 2]]  # only the last worker connects through this route
        self.num_recoveries = 0  # expected recoveries

    def begin(self, name):
        """Waits for two more steps and a random delay; returns the time at which the phase begins."""
        done = self.run.steps[-1].number if self.run.steps else 0
        step = self.run.wait_for_step(done + 2).number
        print(f"  step {step}: {name}", end="", flush=True)
        time.sleep(self.chance.uniform(0.0, 0.1))
        return time.monotonic()

    def end(self, since):
        print(f"; next step after {self.run.wait_for_next_step(since) - since:.2f} s", flush=True)

    def lose_a_tenth(self):
        since = self.begin(f"10 % lost for {self.loss_seconds} s")
        worse = tcp_proxy.Wire(DELAY, JITTER, 0.1, seed=2)
        self.run.proxy.set_wire(self.routes, worse)
        time.sleep(self.loss_seconds)
        self.run.proxy.set_wire(self.routes, self.wire)
        print(f", {worse.num_lost} losses", end="")
        self.end(since + self.loss_seconds)

    def stall_data(self):
        since = self.begin(f"no data between workers {self.workers - 2} and {self.workers - 1} for 3.5 s")
        self.run.proxy.stall(self.pair, 3.5)
        time.sleep(3.5)
        self.end(since + 3.5)

    def stall_control(self):
        worker = self.chance.randrange(self.workers)
        since = self.begin(f"no data between worker {worker} and the control server for 3.5 s")
        self.run.proxy.stall([self.run.control_routes[worker]], 3.5)
        time.sleep(3.5)
        self.end(since + 3.5)

    def damage(self, kind, what):
        since = self.begin(what)
        damage = tcp_proxy.Damage(kind, self.chance.randrange(100_000), self.chance.randrange(8))
        self.run.damage(self.chance, damage, self.run.data_routes)
        named = self.run.wait_for_line(chaos_faults.CONNECTION_BROKE, damage.at, "a line about the broken connection").time
        self.num_recoveries += 1
        print(f", noticed after {named - damage.at:.2f} s; next step after {self.run.wait_for_recovery(damage.at) - since:.2f} s", flush=True)

    def reset_data(self):
        before = self.run.proxy.late_bytes
        self.damage("orphan", "a sender's connection is reset, but the data in flight arrives")
        print(f"    {self.run.proxy.late_bytes - before} bytes were late", flush=True)

    def flip_data(self):
        self.damage("flip", "a bit is flipped in flight")

    def silence_control(self):
        """Silences a control connection for longer than the limit after which a worker counts as lost."""
        worker = 1
        since = self.begin(f"no data between worker {worker} and the control server for 8 s")
        pid = self.run.pid_of_worker(worker)
        self.run.hit.add(pid)
        self.run.proxy.stall([self.run.control_routes[worker]], 8.0)
        self.num_recoveries += 1
        named = chaos_faults.wait_until_named(self.run, worker, pid, since)
        print(f", named after {named - since:.2f} s", end="")
        print(f"; next step after {self.run.wait_for_recovery(since) - since:.2f} s", flush=True)


def phases_of(weather, is_full):
    short = [weather.lose_a_tenth, weather.stall_data, weather.stall_control, weather.reset_data, weather.flip_data]
    return short + 2 * short + 4 * [weather.reset_data, weather.flip_data] + [weather.silence_control] if is_full else short


def main():
    arguments = parse(__doc__, "program", "tutti", full=False, log=None)
    workers, steps = (3, 160) if arguments.full else (2, 90)
    flags = FLAGS + (["--regularized"] if arguments.full else []) + ["--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        calm = run_mirrored(arguments.program, workers, flags, folder, timeout=600)
        run = chaos_run.Run(arguments.tutti, arguments.program, workers, flags, folder, arguments.log)

        def disturb():
            if not arguments.full:  # starting takes long on such a network
                run.wait_for_step(1)
            weather = Weather(run, workers, 5.0 if arguments.full else 1.5)
            for phase in phases_of(weather, arguments.full):
                phase()
            return lambda: look(run, weather)

        run.compare(disturb, calm)


def look(run, weather):
    mistakes, alarms = [], chaos_faults.false_alarms(run)
    print("".join(f"  a false alarm, which does not fail the test: {line}\n" for line in alarms), end="")
    if not (run.proxy.late_bytes and weather.wire.num_lost):
        mistakes.append(f"expected lost and late data, got {weather.wire.num_lost} losses and {run.proxy.late_bytes} late bytes")
    recoveries = run.count(WENT_BACK)
    if recoveries != weather.num_recoveries and not alarms:
        mistakes.append(f"the workers rolled back {recoveries} times; expected {weather.num_recoveries}, one for each broken connection")
    return mistakes, (f"{recoveries} rollbacks, {len(alarms)} false alarms, {weather.wire.num_lost} losses of {run.proxy.num_pieces} chunks, ")


if __name__ == "__main__":
    end_with(main)
