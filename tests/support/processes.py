# Helpers for tests that start processes: jobs whose output is read as it arrives, tasks started
# with TF_CONFIG, signals, and comparison of bits.
# SPDX-License-Identifier: Apache-2.0
import argparse
import atexit
import collections
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

from ports import free_ports

os.environ.setdefault("TUTTI_LOG_LEVEL", "info")  # many tests read lines of this level

LONGEST = 600.0  # limit in seconds that only a hang exceeds; tests do not judge times
STOPPED_ON_REQUEST = 75
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "0",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
       "ASAN_OPTIONS": "detect_leaks=0"}  # Open MPI keeps memory until the process ends

Line = collections.namedtuple("Line", "time text match", defaults=(None,))


class Failure(Exception):
    pass


def require(condition, what, text=""):
    if not condition:
        raise Failure(f"{what}\n{text}")


def say(what, begin):
    print(f"  {what}: {time.monotonic() - begin:.1f} s", flush=True)


def end_with(main):
    """Runs main() and exits with its result, or with 1 and the text of a Failure."""
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")


def run_checks(checks, only=""):
    """Runs the functions that `only` names, separated by commas, or all of them."""
    names = only.split(",") if only else list(checks)
    require(set(names) <= set(checks), f"run_checks: expected names among {', '.join(checks)}; got {only}")
    for name, check in checks.items():
        if name not in names:
            continue
        begin = time.monotonic()
        try:
            said = check()
        except Failure as failure:
            raise Failure(f"{name}: {failure}") from failure
        say(said if isinstance(said, str) else name, begin)


def parse(documentation, *words, **flags):
    """Parses the command line: positional words ("word?" is optional), and flags with their defaults (False: a switch)."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in words:
        parser.add_argument(word.rstrip("?"), nargs="?" if word.endswith("?") else None)
    for name, default in flags.items():
        kind = {"action": "store_true"} if default is False else {"type": str if default is None else type(default), "default": default}
        parser.add_argument("--" + name.replace("_", "-"), **kind)
    return parser.parse_args()


def later_than(entries, since):
    """Returns the entries that are later than a given time, oldest first."""
    first = len(entries)
    while first > 0 and entries[first - 1].time > since:
        first -= 1
    return entries[first:]


def children(parent, program=None):
    """Returns the children of a process that have a task, as {(job, index): pid}; with `program`, only the children that run that program."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                state, own_parent = stat.read().rpartition(")")[2].split()[:2]
            if int(own_parent) != parent or state == "Z":
                continue
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                if program and line.read().split("\0")[0] != program:
                    continue
            with open(f"/proc/{name}/environ", encoding="utf-8", errors="replace") as text:
                variables = dict(each.split("=", 1) for each in text.read().split("\0") if "=" in each)
        except (OSError, ValueError, IndexError):
            continue  # the process has ended
        if "TF_CONFIG" in variables:
            task = json.loads(variables["TF_CONFIG"])["task"]
            found[task["type"], task["index"]] = int(name)
        elif "OMPI_COMM_WORLD_RANK" in variables:
            found["worker", int(variables["OMPI_COMM_WORLD_RANK"])] = int(name)
    return found


class Job:
    """Process, often a launcher, whose output is read as it arrives. It is killed when the test ends."""

    def __init__(self, command, environment=None, log_copy=None):
        self.command, self.lines, self.changed = command, [], threading.Condition()
        self.log_copy = open(log_copy, "w", encoding="utf-8") if log_copy else None
        self.process = subprocess.Popen(command, text=True, errors="replace", stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        atexit.register(self.kill)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for text in self.process.stdout:
            with self.changed:
                self.lines.append(Line(time.monotonic(), text.rstrip("\n")))
                self.changed.notify_all()
            if self.log_copy:
                self.log_copy.write(f"{self.lines[-1].time:.3f} {text}")
                self.log_copy.flush()

    def text(self):
        return "".join(line.text + "\n" for line in list(self.lines))

    def count(self, pattern):
        return sum(bool(re.search(pattern, line.text)) for line in list(self.lines))

    def fail(self, what):
        raise Failure(f"{what}\n" + "\n".join(f"{line.time:.3f} {line.text}" for line in self.lines[-80:]))

    def wait_for(self, find, what, seconds=LONGEST):
        """Calls `find` whenever there are new lines, and returns its first true result."""
        deadline = time.monotonic() + seconds
        while True:
            has_ended = not self.reader.is_alive()
            found = find()
            if found:
                return found
            if has_ended:
                self.fail(f"waiting for {what}: the process exited first, with code {self.process.wait()}")
            if time.monotonic() > deadline:
                self.fail(f"waiting for {what}: timed out after {seconds:.0f} s")
            with self.changed:
                self.changed.wait(0.02)

    def find_line(self, pattern, since=0.0):
        """Returns the first line after a given time that matches the pattern, and its match."""
        for line in later_than(self.lines, since):
            match = re.search(pattern, line.text)
            if match:
                return line._replace(match=match)
        return None

    def wait_for_line(self, pattern, since=0.0, what=None):
        return self.wait_for(lambda: self.find_line(pattern, since), what or f"a line with '{pattern}'")

    def pids(self, program=None):
        return children(self.process.pid, program)

    def pid_of(self, job, index, program=None):
        return self.wait_for(lambda: self.pids(program).get((job, index)), f"a process of {job} {index}")

    def send(self, number, task=None):
        """Sends a signal to the process, or to the given task of a launcher. Returns the time just before the signal."""
        pid = self.pid_of(*task) if task else self.process.pid
        moment = time.monotonic()
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return moment

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(10)

    def finish(self, seconds=LONGEST):
        """Waits for the process to exit and for all its lines. Returns the exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.fail(f"{' '.join(self.command)} did not end within {seconds:.0f} s")
        self.reader.join(10)
        return code

    def succeed(self, *expected):
        """Waits for the process to exit, requires exit code 0 and the `expected` texts in the output, and returns the output."""
        code = self.finish()
        for what in expected:
            require(what in self.text(), f"expected '{what}'", self.text())
        require(code == 0, f"{' '.join(self.command)}: expected exit code 0, got {code}", self.text())
        return self.text()


class Tasks:
    """One process for each task of a cluster, started with TF_CONFIG."""

    def __init__(self, command, counts, environment=None, more_flags=None, more_environment=None, is_restarted=False):
        """`counts`: {"worker": 2, "ps": 1}; `more_...`: dictionaries by task; `is_restarted`: sets
        TUTTI_RESTART to the number of the task's restarts."""
        ports = [f"127.0.0.1:{port}" for port in free_ports(sum(counts.values()))]
        self.cluster = {job: [ports.pop(0) for _ in range(count)] for job, count in counts.items()}
        self.command, self.environment, self.is_restarted = command, environment or {}, is_restarted
        self.more_flags, self.more_environment = more_flags or {}, more_environment or {}
        self.jobs, self.starts = {}, collections.Counter()
        for job, count in counts.items():
            for index in range(count):
                self.start(job, index)

    def own_variables(self, task):
        config = {"cluster": self.cluster, "task": {"type": task[0], "index": task[1]}}
        restarts = {"TUTTI_RESTART": str(self.starts[task])} if self.is_restarted else {}
        return {"TF_CONFIG": json.dumps(config), **restarts}

    def start(self, *task):
        variables = {**self.own_variables(task), **self.environment, **self.more_environment.get(task, {})}
        self.starts[task] += 1
        self.jobs[task] = Job([*self.command, *self.more_flags.get(task, [])], variables)
        return self.jobs[task]

    def __getitem__(self, task):
        return self.jobs[task]

    def text(self):
        return "".join(f"--- {job} {index}: exit code {each.process.poll()}\n{each.text()[-4000:]}"
                       for (job, index), each in self.jobs.items())

    def wait_for(self, find, what, seconds=LONGEST):
        deadline = time.monotonic() + seconds
        while not find():
            failed = {task: job.process.poll() for task, job in self.jobs.items() if job.process.poll() not in (None, 0)}
            require(not failed and time.monotonic() < deadline, f"waiting for {what}: timed out after {seconds:.0f} s, or tasks failed: {failed}", self.text())
            time.sleep(0.01)

    def finish(self, expected=0):
        """Waits for all processes and requires the exit code `expected` (one number, or one per job)."""
        for job in self.jobs.values():
            job.finish()
        codes = {task: job.process.returncode for task, job in self.jobs.items()}
        wrong = {task: code for task, code in codes.items()
                 if code != (expected[task[0]] if isinstance(expected, dict) else expected)}
        require(not wrong, f"expected exit codes {expected}, got {wrong}", self.text())
        return self

    def kill(self):
        for job in self.jobs.values():
            job.kill()


# Time limit, in seconds, for a program that exits on its own; sufficient even if twenty other
# programs run concurrently.
PATIENCE = 1200


def output_of(*command, timeout=PATIENCE, environment=None):
    """Returns the output of a program, which must exit with code 0."""
    result = subprocess.run(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=timeout, env={**os.environ, **(environment or {})})
    require(result.returncode == 0, f"{' '.join(command)}: expected exit code 0, got {result.returncode}", result.stdout)
    return result.stdout


# --- Runs of a program with the flags of examples/common, compared bit by bit (docs/determinism.md).

COMPARED = ("losses_hex", "weights_hash", "slots_hash")
# Each epoch has 4 steps; the last one has a partial batch. A short evaluation does not affect the
# compared values.
FLAGS = ["--batch-size", "130", "--train-examples", "400", "--test-examples", "1000", "--regularized", "--seed", "1",
         "--epochs", "1000"]
ALL_CUT = ["--min-shard-bytes", "0"]


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def new_metrics_file(folder, name="metrics.json"):
    path = os.path.join(folder, name)
    if os.path.exists(path):
        os.remove(path)
    return path


def run_for_metrics(command, folder, timeout=PATIENCE, environment=None):
    path = new_metrics_file(folder)
    output_of(*command, "--metrics-json", path, timeout=timeout, environment=environment)
    return load(path)


def run_mirrored(program, replicas, flags, folder, timeout=PATIENCE):
    """Returns the metrics of a run in one process, which is the reference for all other runs."""
    return run_for_metrics([program, "--strategy", "mirrored", "--devices", "cpu:0", "--replicas", str(replicas), *flags], folder, timeout)


def run_launched(launcher, program, flags, folder, strategy="multi_worker_mirrored"):
    """Returns the metrics of worker 0 of a job that a launcher starts."""
    own = [program, "--strategy", strategy, "--devices", "cpu:0", *flags]
    return run_for_metrics([*launcher, *own], folder, environment=MPI if "mpi" in os.path.basename(launcher[0]) else {})


def run_workers(program, devices, flags, folder, strategy="multi_worker_mirrored"):
    """Returns the metrics of worker 0, with one process per entry of `devices`."""
    path = new_metrics_file(folder)
    own = {("worker", index): ["--devices", device] for index, device in enumerate(devices)}
    workers = Tasks([program, *flags, "--strategy", strategy, "--metrics-json", path], {"worker": len(devices)}, more_flags=own).finish()
    require(not any("examples/s" in workers["worker", i].text() for i in range(1, len(devices))), "a worker that is not the chief printed a report",
            workers.text())
    return load(path)


def differing(reference, got, strategy=None, replicas=None):
    """Returns the differences between two runs. If `strategy` is given, `got` must have it, and `replicas` replicas."""
    found = [key for key in COMPARED if reference[key] != got.get(key)]
    if strategy and (got["num_replicas"], got["strategy"]) != (replicas, strategy):
        found.append(f"{got['num_replicas']} replicas of {got['strategy']}")
    return found


def require_same(name, reference, got, strategy=None, replicas=None, text=""):
    """Requires equal runs, and prints a line with the hash of the weights."""
    found = differing(reference, got, strategy, replicas)
    print(f"  {'DIFFERENT' if found else 'same':9} {got.get('weights_hash')}  {name}", flush=True)
    require(not found, f"{name}: expected equal runs, got differences in {', '.join(found)}", text)


def saved_step(folder):
    """Returns the newest step with a checkpoint."""
    return max(int(name.split("_")[1].split(".")[0]) for name in os.listdir(folder) if name.startswith("step_"))
