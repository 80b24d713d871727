#!/usr/bin/env python3
# REL_G4b: training over a wire that is slow, loses, stalls, and brings things late and twice: the bits of a calm run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: bad_wire_test.py PROGRAM TUTTI [--full] [--log FILE]

`tutti run` starts the workers, two connections between each two of them; all of these, and those to the control server, go through a
proxy. What it does, in user space and so to streams, not to packets:

- every piece takes 20 +- 10 ms, in each direction of each connection; 1 % are lost and come when TCP would have sent them again, 0.2 s
  later. Within a connection the order stays, as TCP sees to it; the two connections overtake each other (what is short goes on one, but
  signs of life, long messages and what is sent again go on both).
- a tenth is lost, for some seconds.
- nothing arrives between two workers until they say so, nor on connections that they open meanwhile; then all of it does.
- nothing arrives between a worker and the control server for 3.5 s: less than the 5 s that count as silence.
- a sender's connection is reset while what it sent is under way: it sends that again on its other connection, and both copies arrive.

False alarms are printed and not judged: a process that gets no turn for seconds says nothing for seconds.
A packet that is doubled or overtaken within a connection cannot be had this way: the system's TCP puts that right before any program sees it.
With --full: the wire is bad from the start, three workers, more of each, and 8 s of silence between a worker and the control server. That is longer than the limit (5 s,
docs/decisions/0026), so the worker is named, its place taken, and the bits are the same still.
"""
import argparse
import os
import random
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import chaos_faults  # noqa: E402
import chaos_run  # noqa: E402
import multi_worker_test as workers_of  # noqa: E402
import tcp_proxy  # noqa: E402

FLAGS = ["--batch-size", "60", "--train-examples", "6000", "--seed", "1", "--epochs", "1000"]
DELAY, JITTER, LOSS = 0.020, 0.010, 0.01
DATA_IS_SILENT = r"tcp: rank \d .*: nothing came for \d+ ms, not even a sign of life"
DATA_IS_BACK = r"tcp: rank \d .* is connected again"
SAID_FOR_LONG = r"tcp: rank \d .* is connected again .*\(\d+ times so far\)"  # from then on every hundredth time is said


class Weather:
    """One phase after the other, each of them somewhere in a step."""

    def __init__(self, run, workers, loss_seconds):
        self.run, self.workers, self.loss_seconds = run, workers, loss_seconds
        self.chance = random.Random(1)
        self.wire = tcp_proxy.Wire(DELAY, JITTER, LOSS)
        self.routes = run.data_routes + run.control_routes
        run.proxy.set_wire(self.routes, self.wire)
        self.pair = [run.data_routes[workers - 2]]  # where the last worker alone connects: one pair

    def begin(self, name):
        """Two steps after the phase before."""
        done = self.run.steps[-1].number if self.run.steps else 0
        step = self.run.wait_for_step(done + 2).number
        print(f"  step {step}: {name}", end="", flush=True)
        time.sleep(self.chance.uniform(0.0, 0.1))
        return time.monotonic()

    def end(self, since):
        print(f"; next step after {self.run.wait_for_next_step(since) - since:.2f} s", flush=True)

    def num_accepted(self):
        return sum(route.num_accepted for route in self.run.data_routes)

    def wait_for_news(self, pattern, since, is_replaced):
        """A line. Two workers who have said it ten times say it no more; then the proxy tells of the new connection."""
        def find():
            line = self.run.find_line(pattern, since)
            if line or not self.run.find_line(SAID_FOR_LONG, 0.0):
                return line
            return is_replaced() or None
        self.run.wait_for(find, f"a line that says '{pattern}'")

    def lose_a_tenth(self):
        since = self.begin(f"10 % lost for {self.loss_seconds} s")
        worse = tcp_proxy.Wire(DELAY, JITTER, 0.1, seed=2)
        self.run.proxy.set_wire(self.routes, worse)
        time.sleep(self.loss_seconds)
        self.run.proxy.set_wire(self.routes, self.wire)
        print(f", {worse.num_lost} pieces", end="")
        self.end(since + self.loss_seconds)

    def stall_data(self):
        workers = f"{self.workers - 2} and {self.workers - 1}"
        since, accepted = self.begin(f"nothing between workers {workers}"), self.num_accepted()
        self.run.proxy.stall(self.pair, chaos_run.LONGEST_WAIT)
        self.wait_for_news(DATA_IS_SILENT, since, lambda: self.num_accepted() > accepted)
        self.run.proxy.stall(self.pair, 0.0)
        self.wait_for_news(DATA_IS_BACK, since, lambda: self.num_accepted() > accepted)
        self.end(time.monotonic())

    def stall_control(self):
        worker = self.chance.randrange(self.workers)
        since = self.begin(f"nothing between worker {worker} and the control server for 3.5 s")
        self.run.proxy.stall([self.run.control_routes[worker]], 3.5)
        time.sleep(3.5)
        self.end(since + 3.5)

    def take_back(self, connection):
        """Another one in place of a damage that was not done."""
        connection.damage = None
        return tcp_proxy.Damage("orphan", self.chance.randrange(100_000))

    def busiest(self):
        """Within a step: what is short goes on one connection alone."""
        connections = [c for route in self.run.data_routes for c in route.connections]
        before = {connection: connection.passed for connection in connections}
        self.run.wait_for_next_step(time.monotonic())
        return max(connections, key=lambda connection: connection.passed - before[connection])

    def send_twice(self):
        since, before = self.begin("a sender's connection is reset, what is under way arrives"), self.run.proxy.late_bytes
        damage = tcp_proxy.Damage("orphan", self.chance.randrange(100_000))
        while not damage.at:  # which is the busiest may change
            connection, done = self.busiest(), self.run.steps[-1].number
            self.run.proxy.damage_connection(connection, damage)
            self.run.wait_for(lambda: damage.at or self.run.steps[-1].number > done + 3 or None, "the proxy damaging a connection")
            damage = damage if damage.at else self.take_back(connection)
        self.wait_for_news(DATA_IS_BACK, damage.at, lambda: damage.replaced)
        print(f", {self.run.proxy.late_bytes - before} bytes late", end="")
        self.end(since)

    def silence_control(self):
        """Longer than what counts as alive."""
        worker = 1
        since = self.begin(f"nothing between worker {worker} and the control server for 8 s")
        pid = self.run.pid_of(worker)
        self.run.hit.add(pid)
        self.run.proxy.stall([self.run.control_routes[worker]], 8.0)
        named = chaos_faults.wait_until_named(self.run, worker, pid, since)
        print(f", named after {named - since:.2f} s", end="")
        print(f"; next step after {self.run.wait_for_recovery(since) - since:.2f} s", flush=True)


def phases_of(weather, is_full):
    short = [weather.lose_a_tenth, weather.stall_data, weather.stall_control, weather.send_twice, weather.send_twice]
    return short + 2 * short + 8 * [weather.send_twice] + [weather.silence_control] if is_full else short


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tutti")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--log", help="write the lines of all workers there")
    arguments = parser.parse_args()
    workers = 3 if arguments.full else 2
    steps = 160 if arguments.full else 90
    flags = FLAGS + (["--regularized"] if arguments.full else []) + ["--steps", str(steps)]
    os.environ["TUTTI_TCP_CONNECTIONS"] = "2"
    with tempfile.TemporaryDirectory() as folder:
        calm = workers_of.run_mirrored(arguments.program, workers, flags, folder, timeout=600)
        begin = time.monotonic()
        run = chaos_run.Run(arguments.tutti, arguments.program, workers, flags, folder, arguments.log)
        try:
            if not arguments.full:  # the start takes long on such a wire
                run.wait_for_step(1)
            weather = Weather(run, workers, 5.0 if arguments.full else 1.5)
            for phase in phases_of(weather, arguments.full):
                phase()
            code = run.wait_for_end()
        except chaos_run.Failure as failure:
            run.end()
            sys.exit(f"\nFAILED: {failure}\n{run.last_lines(60)}")
        proxy, got = run.proxy, run.metrics()
        mistakes = [] if code == 0 else [f"exit code {code}"]
        mistakes += [f"different {key}" for key in workers_of.COMPARED if calm[key] != got.get(key)]
        alarms = chaos_faults.false_alarms(run)
        print("".join(f"  a false alarm (not judged): {line}\n" for line in alarms), end="")
        if not (proxy.num_overtaken and proxy.late_bytes and weather.wire.num_lost):
            mistakes.append("the wire was not bad: nothing was overtaken, lost or late")
        print(f"  {'DIFFERENT' if mistakes else 'same':9} {got.get('weights_hash')}  exit code {code}, {time.monotonic() - begin:.0f} s, "
              f"{len(alarms)} false alarms; of {proxy.num_pieces} pieces {weather.wire.num_lost} came again, {proxy.num_overtaken} were "
              f"overtaken; the machine answered at most {run.most_late:.2f} s late")
        if mistakes:
            sys.exit("FAILED: " + "; ".join(mistakes) + "\n" + run.last_lines(60))


if __name__ == "__main__":
    main()
