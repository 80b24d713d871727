# Runs programs, each with a time limit and in its own process group, and stores their output.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time


class Outcome:
    def __init__(self, argv, code, output, errors, seconds, timed_out, missing=""):
        self.argv, self.code, self.output, self.errors = argv, code, output, errors
        self.seconds, self.timed_out, self.missing = seconds, timed_out, missing

    def ok(self):
        return self.code == 0 and not self.timed_out

    def why(self):
        """Returns one line about how the program ended."""
        name = pathlib.Path(str(self.argv[0])).name
        if self.missing:
            return self.missing
        if self.timed_out:
            return f"{name}: still running after {self.seconds:.0f} s, stopped"
        if self.code is not None and self.code < 0:
            return f"{name}: ended by {signal_name(-self.code)}"
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return f"{name}: exit code {self.code}" + (f": {lines[-1]}" if lines else "")

    def tail(self, lines=30):
        return "\n".join((self.output + self.errors).splitlines()[-lines:])

    def last_json(self):
        """Returns the last line of output that is a JSON object, or None."""
        for line in reversed(self.output.splitlines()):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except ValueError:
                    return None
        return None


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_group(process):
    """Ends a program and the processes that it started, which form a process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            continue  # child processes may still run
    process.wait()


class Runner:
    """Runs commands within a time budget. Leaving its `with` block ends programs that still run."""

    def __init__(self, flags):
        self.flags = flags
        self.deadline = time.monotonic() + flags.budget_seconds
        self.folder = pathlib.Path(flags.logs or tempfile.mkdtemp(prefix="gpu_check_"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step, self.step_deadline, self.count, self.keep = "start", self.deadline, 0, bool(flags.logs)
        self.talks = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for talk in self.talks:
            talk.close()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kept_logs(self):
        return self.keep

    def restart_budget(self):
        """Restarts the time budget, because build time does not count."""
        self.deadline = time.monotonic() + self.flags.budget_seconds

    def begin_build(self, name, seconds):
        self.step, self.step_deadline = name, time.monotonic() + seconds

    def remaining(self):
        return self.deadline - time.monotonic()

    def begin_step(self, name, limit):
        self.step = name
        self.step_deadline = min(self.deadline, time.monotonic() + limit)

    def left(self, limit=None):
        """Returns the seconds that the next command of this step may take."""
        left = self.step_deadline - time.monotonic()
        return max(0.5, left if limit is None else min(left, limit))

    def log_path(self):
        self.count += 1
        safe = "".join(c if c.isalnum() else "_" for c in self.step)
        return self.folder / f"{self.count:03}_{safe}.log"

    def run(self, argv, env=None, limit=None, input_text=None):
        argv = [str(word) for word in argv]
        begin, seconds = time.monotonic(), self.left(limit)
        try:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE if input_text else subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True)
        except OSError as error:
            return Outcome(argv, None, "", "", 0.0, False, f"{argv[0]}: cannot be started: {error.strerror}")
        timed_out = False
        try:
            output, errors = process.communicate(input_text, timeout=seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            kill_group(process)
            try:
                output, errors = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                output, errors = "", "(a child process keeps the output open)"
        except BaseException:
            kill_group(process)
            raise
        outcome = Outcome(argv, process.returncode, output, errors, time.monotonic() - begin, timed_out)
        self.log_path().write_text(f"$ {' '.join(argv)}\n{output}\n{errors}\n[{outcome.why()}, {outcome.seconds:.1f} s]\n",
                                   encoding="utf-8")
        return outcome

    def talk(self, argv, env=None):
        talk = Talk([str(word) for word in argv], env, self.log_path())
        self.talks.append(talk)
        return talk


class Talk:
    """Program that keeps running: it reads lines, and prints JSON objects, one per line."""

    def __init__(self, argv, env, log):
        self.argv, self.log, self.lines = argv, log, queue.Queue()
        self.log_file = open(log, "w", encoding="utf-8")
        self.log_file.write(f"$ {' '.join(argv)}\n")
        self.log_file.flush()
        self.problem = ""
        try:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.log_file, text=True, errors="replace", start_new_session=True)
        except OSError as error:
            self.process = None
            self.problem = f"{argv[0]}: cannot be started: {error.strerror}"
            return
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def event(self, kind, seconds):
        """Returns the next object of this kind. If none arrives in time, returns None, and `problem` has the reason."""
        end = time.monotonic() + seconds
        while not self.problem:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.problem = f"no answer within {seconds:.0f} s"
                break
            if line is None:
                self.problem = self._last_words()
                break
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("event") == kind:
                return found
        self.close()
        return None

    def _last_words(self):
        self.process.wait()
        self.log_file.flush()
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if line.strip()]
        how = f"exit code {self.process.returncode}" if self.process.returncode >= 0 else \
            f"ended by {signal_name(-self.process.returncode)}"
        return how + (f": {lines[-1]}" if lines else "")

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError, AttributeError):
            pass  # event() then reports how the program ended

    def close(self):
        if self.process is not None:
            try:
                self.process.stdin.close()
                self.process.wait(0.2 if self.problem else 5)
            except (OSError, subprocess.TimeoutExpired):
                pass
            kill_group(self.process)
            self.reader.join(1)
            if not self.reader.is_alive():
                self.process.stdout.close()
        self.log_file.close()
