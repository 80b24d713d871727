#!/usr/bin/env python3
# Tests the output of `tutti run`: complete lines with task names, and outputs that are closed, full
# or slow.
# SPDX-License-Identifier: Apache-2.0
"""Usage: run_output_test.py PROGRAM"""
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from run_command_kit import PROGRAM, ENVIRONMENT, LIMIT, TuttiRunCase, python, tutti_run, runs, wait_until  # also finds `processes`
from processes import children


class Output(TuttiRunCase):
    def test_lines_are_prefixed_and_stay_on_their_stream(self):
        body = 'sys.stdout.write("first\\n" + "x" * 100000 + "\\nlast, without end"); sys.stdout.flush()\n' \
               'say("an error", sys.stderr)'
        code, output, errors = tutti_run("-n", "2", "--", *python(body))
        self.assertEqual(code, 0)
        for name in ("worker-0", "worker-1"):
            lines = [line for line in output.splitlines() if line.startswith(f"[{name}]: ")]
            texts = [line[len(name) + 4:] for line in lines]
            self.assertEqual("\n".join(texts[:1] + ["".join(texts[1:-1])] + texts[-1:]),
                             "first\n" + "x" * 100000 + "\nlast, without end")
        self.assertEqual(sorted(errors.splitlines()), ["[worker-0]: an error", "[worker-1]: an error"])

    def test_failure_report_repeats_only_lines_out_of_view(self):
        for num_later_lines in (2, 60):
            body = 'if index == 1:\n  say("boom"); mark("failed"); wait_for("later"); sys.exit(3)\n' \
                   f'wait_for("failed")\nfor i in range({num_later_lines}): say(f"line {{i}}"); time.sleep(0.01)\n' \
                   'mark("later"); time.sleep(100)'
            with self.subTest(num_later_lines), tempfile.TemporaryDirectory() as marks:
                result = subprocess.run([PROGRAM, "run", "-n", "2", "--", *python(body)], text=True, timeout=LIMIT,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**ENVIRONMENT, "MARKS": marks})
                self.assertEqual(result.returncode, 3)
                lines = result.stdout.splitlines()
                failure = next(i for i, line in enumerate(lines) if line.startswith("tutti run: worker-1 failed first: "))
                # The launcher may read a line of one process after later lines of the other
                # process.
                is_out_of_sight = failure - lines.index("[worker-1]: boom") > 12
                self.assertEqual("    its last lines:" in lines, is_out_of_sight, result.stdout)
                self.assertEqual(result.stdout.count("[worker-1]: boom"), 2 if is_out_of_sight else 1, result.stdout)

    def test_verbose_flag_shows_info_log(self):
        for flags, level in (((), "none"), (("-v",), "info"), (("-v", "--env", "TUTTI_LOG_LEVEL=debug"), "debug")):
            with self.subTest(flags):
                environment = {name: value for name, value in ENVIRONMENT.items() if name != "TUTTI_LOG_LEVEL"}
                result = subprocess.run([PROGRAM, "run", "-n", "1", *flags, *python(
                    'say("level=" + os.environ.get("TUTTI_LOG_LEVEL", "none"))')], text=True, capture_output=True,
                                        timeout=LIMIT, env=environment)
                self.assertEqual(result.stdout, f"[worker-0]: level={level}\n")

    def test_log_files_contain_lines_of_each_process(self):
        with tempfile.TemporaryDirectory() as folder:
            logs = os.path.join(folder, "new", "logs")
            self.output("-n", "2", "--log-dir", logs, "--max-restarts", "1", "--", *python(
                'say(f"{task} {index}, try {restart}"); sys.exit(4 if index == 1 and restart == 0 else 0)'))
            texts = {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(logs).iterdir()}
        self.assertEqual(texts, {"worker-0.log": "worker 0, try 0\n",
                                 "worker-1.log": "worker 1, try 0\n--- restart 1\nworker 1, try 1\n"})

    def test_uncreatable_log_folder_is_an_error(self):
        errors = self.errors(1, "-n", "1", "--log-dir", "/proc/none", "--", "true")
        self.assertRegex(errors, "^tutti: run: cannot write log /proc/none/worker-0.log: No such file")

    def on_terminal(self, env):
        mine, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "run", "-n", "1", "--", "echo", "hello"], stdout=theirs, stdin=theirs,
                                   env={**ENVIRONMENT, "TERM": "xterm", **env})
        self.assertEqual(process.wait(LIMIT), 0)
        text = os.read(mine, 1000).decode()
        os.close(mine)
        os.close(theirs)
        return text

    def test_names_are_colored_only_on_terminal(self):
        self.assertEqual(self.on_terminal({}), "\033[36m[worker-0]:\033[0m hello\r\n")
        self.assertEqual(self.on_terminal({"NO_COLOR": "1"}), "[worker-0]: hello\r\n")
        self.assertEqual(tutti_run("-n", "1", "--", "echo", "hello")[1], "[worker-0]: hello\n")

    def test_closed_output_pipe_stops_job(self):
        body = 'signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nwhile True: say("line"); time.sleep(0.001)'
        process = subprocess.Popen([PROGRAM, "run", "-n", "2", "--", *python(body)], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        lines = iter(process.stdout.readline, b"")
        for name in (b"[worker-0]", b"[worker-1]"):
            next(line for line in lines if name in line)
        process.stdout.close()
        self.assertEqual(process.wait(LIMIT), 75)


    def test_closed_standard_streams_are_not_reused_for_pipes(self):
        for closed in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
            with self.subTest(closed), tempfile.NamedTemporaryFile() as lines:
                # If a pipe of the job had the number of a closed stream, lines would be written to the pipe.
                body = f'open("{lines.name}", "a").write(sys.stdin.read() + task); say("x"); say("y", sys.stderr)'
                result = subprocess.run([PROGRAM, "run", "-n", "2", "--", *python(body)], capture_output=True,
                                        timeout=LIMIT, env=ENVIRONMENT,
                                        preexec_fn=lambda fds=closed: [os.close(fd) for fd in fds])
                self.assertEqual((result.returncode, lines.read()), (0, b"workerworker"))
                self.assertEqual(result.stdout.count(b"x"), 0 if 1 in closed else 2)
                self.assertEqual(result.stderr.count(b"y"), 0 if 2 in closed else 2)

    def test_full_disk_does_not_end_job(self):
        body = 'say("x" * 5000); say("there", sys.stderr)'
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([PROGRAM, "run", "-n", "2", "--", *python(body)], stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=LIMIT, env=ENVIRONMENT)
        self.assertEqual((result.returncode, sorted(result.stderr.splitlines())),
                         (0, ["[worker-0]: there", "[worker-1]: there"]))
        with tempfile.TemporaryDirectory() as folder, open(folder + "/output", "w+", encoding="utf-8") as output:
            result = subprocess.run([PROGRAM, "run", "-n", "2", "--log-dir", folder, "--", *python(body)], stdout=output,
                                    stderr=subprocess.PIPE, text=True, timeout=LIMIT, env=ENVIRONMENT,
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.path.getsize(folder + "/worker-0.log"), 1000)

    def test_slow_reader_receives_all_output(self):
        body = 'print("\\n".join(f"line {i}" for i in range(300000))); say("last", sys.stderr)'
        process = subprocess.Popen([PROGRAM, "run", "-n", "1", "--", *python(body)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        time.sleep(0.5)  # the output exceeds the buffers of the pipes and the launcher
        output, errors = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, errors), (0, "[worker-0]: last\n"))
        self.assertEqual(output, "".join(f"[worker-0]: line {i}\n" for i in range(300000)))

    def test_blocked_reader_does_not_delay_signals_or_deadlines(self):
        flood = python('say("here", sys.stderr)\nwhile True: say("x" * 1000)')
        for flags, number, expected in (((), signal.SIGTERM, 143), (("--timeout", "5"), None, 124),
                                        (("--max-restarts", "1"), signal.SIGKILL, 137)):
            with self.subTest(flags):
                process = subprocess.Popen([PROGRAM, "run", "-n", "1", "--grace", "0.2", *flags, "--", *flood],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
                self.assertIn("here", process.stderr.readline())
                time.sleep(0.3)  # now all pipes are full
                if number == signal.SIGTERM:
                    process.send_signal(number)
                elif number:
                    # The test kills the process and, after its restart, kills it again. Then the job
                    # ends, or at the latest when SIGTERM requests it.
                    for _ in range(2):
                        wait_until(lambda: children(process.pid, sys.executable), "the start of a process")
                        killed = next(iter(children(process.pid, sys.executable).values()))
                        os.kill(killed, signal.SIGKILL)
                        wait_until(lambda pid=killed: not runs(pid), "the end of the killed process")
                    self.assertIn("failed first", "".join(process.stderr.readline() for _ in range(4)))
                    process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(LIMIT), expected)
                process.stdout.close()
                process.stderr.close()


if __name__ == "__main__":
    unittest.main()
