# A training run whose processes, lines, steps and connections a test can see and disturb.
# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import tcp_proxy

LONGEST_WAIT = 240.0  # seconds; nothing here is judged by its time, but a hang must end

# Each process finds its own ports, and says where the control server is before it gets the proxy's address of it.
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

Line = collections.namedtuple("Line", "time text")
Step = collections.namedtuple("Step", "time number")


class Failure(Exception):
    pass


class Run:
    """`tutti run` with workers 0 to n - 1. The connections of rank i's listener pass data_routes[i], its connection to the control
    server control_routes[i]."""

    def __init__(self, tutti, program, num_workers, flags, folder, log_copy=None, before=""):
        """`before`: words in front of the program's name, for instance those of unshare."""
        self.before = before
        self.program, self.num_workers, self.folder = program, num_workers, folder
        self.log = os.path.join(folder, "log", "log.jsonl")
        self.lines, self.steps = [], []
        self.hit = set()  # pids that were to die, or to be given up
        self.alarms = []  # lines that gave up one that was not to
        self.changed = threading.Condition()
        self.log_copy = open(log_copy, "w", encoding="utf-8") if log_copy else None
        self.late, self.most_late = collections.deque(maxlen=10000), 0.0
        self.make_proxy()
        wrapper = self.write_wrapper()
        command = [tutti, "run", "-n", str(num_workers), "--max-restarts", "10000", "--", "sh", wrapper, program,
                   "--strategy", "multi_worker_mirrored", "--transport", "tcp", "--devices", "cpu:0",
                   "--metrics-json", os.path.join(folder, "chaos.json"), "--log-dir", os.path.join(folder, "log")] + flags
        self.launcher = subprocess.Popen(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.stops = False
        self.threads = [threading.Thread(target=target, daemon=True) for target in (self.read_lines, self.read_steps, self.watch_time)]
        for thread in self.threads:
            thread.start()

    def make_proxy(self):
        # A loopback address of its own: nobody else takes its ports while a worker is dead.
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

    def write_wrapper(self):
        cases = [CASE.format(index=i, listen="{}:{}".format(*self.listen[i]), data=self.data_routes[i].port,
                             control="{0.host}:{0.port}".format(self.control_routes[i])) for i in range(self.num_workers)]
        path = os.path.join(self.folder, "worker.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(WRAPPER.format(folder=self.folder, before=self.before, cases="\n".join(cases)))
        return path

    # --- What happens, by threads.

    def read_lines(self):
        for text in self.launcher.stdout:
            with self.changed:
                self.lines.append(Line(time.monotonic(), text.rstrip("\n")))
                self.changed.notify_all()
            if self.log_copy:
                self.log_copy.write(f"{self.lines[-1].time:.3f} {text}")
                self.log_copy.flush()

    def read_steps(self):
        """The chief writes a line when a step is done."""
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
        """How late a thread gets its turn on this machine: what is no fault of the workers."""
        while not self.stops:
            begin = time.monotonic()
            time.sleep(0.01)
            now = time.monotonic()
            self.late.append((now, now - begin - 0.01))
            self.most_late = max(self.most_late, now - begin - 0.01)

    def most_late_since(self, begin):
        return max([late for when, late in list(self.late) if when >= begin], default=0.0)

    # --- Waiting.

    def wait_for(self, find, what, seconds=LONGEST_WAIT):
        """Until `find` gives something, which is looked at again whenever there are new lines or steps."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while True:
                found = find()
                if found is not None:
                    return found
                if self.launcher.poll() is not None:
                    raise Failure(f"the launcher ended with {self.launcher.returncode} before there was {what}")
                if time.monotonic() > deadline:
                    raise Failure(f"{what}: not within {seconds:.0f} s")
                self.changed.wait(0.02)

    def find_line(self, pattern, since):
        """The first line with the pattern after a moment."""
        for line in later_than(self.lines, since):
            if re.search(pattern, line.text):
                return line
        return None

    def wait_for_line(self, pattern, since, what):
        return self.wait_for(lambda: self.find_line(pattern, since), what)

    def wait_for_step(self, number):
        return self.wait_for(lambda: next((s for s in reversed(self.steps) if s.number >= number), None), f"step {number}")

    def wait_for_next_step(self, since):
        return self.wait_for(lambda: next(iter(later_than(self.steps, since)), None), "a next step").time

    def wait_for_recovery(self, since):
        """All workers go on after a commit; when the chief has finished the step after it."""
        went_on = [self.wait_for_line(rf"^\[worker-{w}\]: .*worker {w}: goes on after step \d+", since, f"worker {w} going on")
                   for w in range(self.num_workers)]
        number = int(went_on[0].text.rpartition(" ")[2]) + 1
        # Lines take another way than steps, which may be a little quicker.
        return self.wait_for(lambda: next((s for s in later_than(self.steps, went_on[0].time - 0.05) if s.number == number), None),
                             f"step {number} after a recovery").time

    # --- Processes.

    def pids(self):
        """By worker, of those that run the program by now."""
        found = {}
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    letter, parent = stat.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                    is_worker = line.read().split("\0")[0] == self.program
                with open(f"/proc/{name}/environ", encoding="utf-8", errors="replace") as variables:
                    index = re.search(r'"index": *(\d+)', variables.read())
            except (OSError, ValueError, IndexError):
                continue
            if int(parent) == self.launcher.pid and is_worker and letter != "Z" and index:
                found[int(index.group(1))] = int(name)
        return found

    def pid_of(self, worker):
        return self.wait_for(lambda: self.pids().get(worker), f"a process of worker {worker}")

    def send(self, pid, number, is_deadly=True):
        """The moment before, for what comes after it."""
        moment = time.monotonic()
        if is_deadly and number != signal.SIGCONT:
            self.hit.add(pid)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return moment

    # --- The end.

    def wait_for_end(self):
        """The exit code."""
        deadline = time.monotonic() + LONGEST_WAIT
        while self.launcher.poll() is None:
            if time.monotonic() > deadline:
                raise Failure("the run does not end")
            time.sleep(0.01)
        self.end()
        return self.launcher.returncode

    def end(self):
        self.launcher.kill()  # a guard ends the workers
        self.launcher.wait()
        self.threads[0].join(timeout=10)
        self.stops = True
        self.proxy.stop()

    def metrics(self):
        try:
            with open(os.path.join(self.folder, "chaos.json"), encoding="utf-8") as file:
                return json.load(file)
        except OSError:
            return {}

    def last_lines(self, count):
        return "\n".join(f"{line.time:.3f} {line.text}" for line in self.lines[-count:])


def later_than(entries, since):
    """Those after a moment, the first one first."""
    first = len(entries)
    while first > 0 and entries[first - 1].time > since:
        first -= 1
    return entries[first:]
