# Training run in which a test can observe and disturb processes, output, steps and connections.
# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import random
import signal
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
import tcp_proxy  # noqa: E402
from processes import Job, differing, later_than, load  # noqa: E402

# Script that starts a worker: writes the control server's address to a file, and then replaces it,
# and the worker's data addresses, by those of the proxy.
WRAPPER = """#!/bin/sh
index=${{TF_CONFIG##*\\"index\\":}}
index=${{index%%[!0-9]*}}
echo "${{TUTTI_CONTROL#grpc://}}" > {folder}/control.$index.new
mv {folder}/control.$index.new {folder}/control.$index
case $index in
{cases}
esac
export TUTTI_DATA_LISTEN TUTTI_DATA_ADDRESS TUTTI_CONTROL
exec {before} "$@"
"""
CASE = "{index}) TUTTI_DATA_LISTEN={listen} TUTTI_DATA_ADDRESS=127.0.0.1:{data} TUTTI_CONTROL=grpc://{control};;"

Step = collections.namedtuple("Step", "time number")


class Run(Job):
    """`tutti run` with workers 0 to n - 1. Connections to worker i pass through data_routes[i],
    and worker i's connection to the control server through control_routes[i]."""

    def __init__(self, tutti, program, num_workers, flags, folder, log_copy=None, before=""):
        """`before`: command that runs the program, for example "unshare --pid"."""
        self.program, self.num_workers, self.folder = program, num_workers, folder
        self.log, self.metrics_file = os.path.join(folder, "log", "log.jsonl"), os.path.join(folder, "chaos.json")
        self.steps = []
        self.hit = set()  # pids expected to die or to be declared lost
        self.alarms = []  # log lines that wrongly declare a process lost
        self.late, self.most_late = collections.deque(maxlen=10000), 0.0
        self.make_proxy()
        self.begin = time.monotonic()
        super().__init__([tutti, "run", "-n", str(num_workers), "--max-restarts", "10000", "--", "sh", self.write_wrapper(before), program,
                          "--strategy", "multi_worker_mirrored", "--transport", "tcp", "--devices", "cpu:0",
                          "--metrics-json", self.metrics_file, "--log-dir", os.path.dirname(self.log), *flags], log_copy=log_copy)
        self.stops = False
        for target in (self.read_steps, self.watch_time):
            threading.Thread(target=target, daemon=True).start()

    def make_proxy(self):
        # Uses a separate loopback address, so that no other process takes the ports while a worker
        # is dead.
        chance = random.Random()
        host = f"127.{chance.randrange(1, 255)}.{chance.randrange(1, 255)}.{chance.randrange(1, 255)}"
        self.listen = [(host, 20000 + index) for index in range(self.num_workers)]
        self.proxy = tcp_proxy.Proxy()
        self.data_routes = [self.proxy.add_route(f"worker {i}", lambda i=i: self.listen[i]) for i in range(self.num_workers)]
        self.control_routes = [self.proxy.add_route(f"control of worker {i}", lambda i=i: self.control_of(i), is_local=True)
                               for i in range(self.num_workers)]
        self.proxy.start()

    def control_of(self, index):
        with open(os.path.join(self.folder, f"control.{index}"), encoding="utf-8") as file:
            host, _, port = file.read().strip().rpartition(":")
        return host, int(port)

    def write_wrapper(self, before):
        cases = [CASE.format(index=i, listen="{}:{}".format(*self.listen[i]), data=self.data_routes[i].port,
                             control="{0.host}:{0.port}".format(self.control_routes[i])) for i in range(self.num_workers)]
        path = os.path.join(self.folder, "worker.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(WRAPPER.format(folder=self.folder, before=before, cases="\n".join(cases)))
        return path

    def read_steps(self):
        """Reads the line that the chief writes after each step."""
        offset, rest = 0, b""
        while not self.stops:
            time.sleep(0.004)
            try:
                if os.path.getsize(self.log) == offset:
                    continue
                with open(self.log, "rb") as file:
                    file.seek(offset)
                    data = file.read()
            except OSError:
                continue
            offset += len(data)
            *whole, rest = (rest + data).split(b"\n")
            numbers = [json.loads(line)["step"] for line in whole if b'"loss"' in line]
            with self.changed:
                self.steps += [Step(time.monotonic(), number) for number in numbers]
                self.changed.notify_all()

    def watch_time(self):
        """Measures how late this machine schedules a thread, which is not the workers' fault."""
        while not self.stops:
            begin = time.monotonic()
            time.sleep(0.01)
            now = time.monotonic()
            self.late.append((now, now - begin - 0.01))
            self.most_late = max(self.most_late, now - begin - 0.01)

    def most_late_since(self, begin):
        return max([late for when, late in list(self.late) if when >= begin], default=0.0)

    def wait_for_step(self, number):
        return self.wait_for(lambda: next((s for s in reversed(self.steps) if s.number >= number), None), f"step {number}")

    def wait_for_next_step(self, since):
        return self.wait_for(lambda: next(iter(later_than(self.steps, since)), None), "the next step").time

    def wait_for_recovery(self, since):
        """Returns the time at which the chief finished the first step after all workers continued from a commit."""
        went_on = [self.wait_for_line(rf"^\[worker-{w}\]: .*worker {w}: continues after step \d+", since, f"worker {w} continuing")
                   for w in range(self.num_workers)]
        number = int(went_on[0].text.rpartition(" ")[2]) + 1
        # Output lines and steps arrive over different channels, so a step may arrive slightly
        # before the line about the recovery.
        return self.wait_for(lambda: next((s for s in later_than(self.steps, went_on[0].time - 0.05) if s.number == number), None),
                             f"step {number} after a recovery").time

    def damage(self, chance, damage, routes):
        """Damages a connection of the routes, and returns after the damage."""
        self.wait_for(lambda: self.proxy.damage_one(chance, damage, routes), "an open connection")
        self.wait_for(lambda: damage.at, "the proxy damaging a connection")

    def pid_of_worker(self, worker):
        return self.pid_of("worker", worker, self.program)

    def hit_process(self, pid, number, is_deadly=True):
        """Sends a signal and returns the time just before."""
        moment = time.monotonic()
        if is_deadly and number != signal.SIGCONT:
            self.hit.add(pid)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return moment

    def compare(self, disturb, calm):
        """Calls disturb() and waits for the end; requires exit code 0 and the bits of the
        undisturbed run. `disturb` returns a function that is called after the end and returns
        further errors and a text to print."""
        try:
            look = disturb()
            code = self.finish()
        finally:
            self.kill()  # a guard process ends the workers
            self.stops = True
            self.proxy.stop()
        mistakes, what = look()
        got = load(self.metrics_file) if os.path.exists(self.metrics_file) else {}
        mistakes += [] if code == 0 else [f"exit code {code}"]
        mistakes += [f"different {key}" for key in differing(calm, got)]
        print(f"  {'DIFFERENT' if mistakes else 'same':9} {got.get('weights_hash')}  {what}exit code {code}, {time.monotonic() - self.begin:.0f} s, "
              f"the machine scheduled a thread at most {self.most_late:.2f} s late")
        if mistakes:
            self.fail("; ".join(mistakes))
        return got
