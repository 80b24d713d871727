# Helpers for tests of `tutti run`: start it, read its output, inspect processes.
# SPDX-License-Identifier: Apache-2.0
"""Imported by programs whose first argument is the path of tutti."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from program_case import ProgramCase

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import Job  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
for each in ("OMP_NUM_THREADS", "TF_CONFIG", "NO_COLOR", "XDG_RUNTIME_DIR"):
    os.environ.pop(each, None)
ENVIRONMENT = dict(os.environ)
LIMIT = 600  # seconds; only a hang takes this long

# First lines, with helper functions, of the Python programs that the tests start.
HEAD = """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task, index = config["task"]["type"], config["task"]["index"]
restart = int(os.environ["TUTTI_RESTART"])
def say(text, file=sys.stdout): print(text, file=file, flush=True)
def mark(name): open(os.path.join(os.environ["MARKS"], name), "w").close()
def wait_for(name):
    while not os.path.exists(os.path.join(os.environ["MARKS"], name)): time.sleep(0.005)
"""


def python(body):
    return [sys.executable, "-S", "-c", HEAD + body]


def tutti_run(*words, env=None):
    """Runs tutti with flags and, after "--", the program. Returns exit code, standard output and standard error."""
    with tempfile.TemporaryDirectory() as marks:  # files by which processes report their progress
        result = subprocess.run([PROGRAM, "run", *words], text=True, capture_output=True, timeout=LIMIT,
                                env={**ENVIRONMENT, "MARKS": marks, **(env or {})})
    return result.returncode, result.stdout, result.stderr


class TuttiRunCase(ProgramCase):
    run_program = staticmethod(tutti_run)


class Launcher(Job):
    """Running `tutti run` whose output is read line by line."""

    def wait_for_each(self, *parts):
        """Reads lines until each of `parts` has occurred in one of them."""
        for part in parts:
            self.wait_for_line(re.escape(part))

    def end(self):
        """Waits for the launcher to exit. Returns its exit code and complete output."""
        return self.finish(LIMIT), self.text()


@contextlib.contextmanager
def launcher(*words, env=None):
    started = Launcher([PROGRAM, "run", *words], env)
    try:
        yield started
    finally:
        started.kill()


def runs(pid):
    """Returns true if the process runs; zombies do not count."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {LIMIT} s waiting for {what}")
        time.sleep(0.005)


def said(output, what):
    """Returns {task: value} from lines of the form "[task]: what=value"."""
    return dict(re.findall(rf"^\[([a-z]+-\d+)\]: {what}=(.*)$", output, re.MULTILINE))
