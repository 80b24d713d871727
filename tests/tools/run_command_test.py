#!/usr/bin/env python3
# Runs `tutti run` with real processes and checks their environment, their output, and how the job
# ends.
# SPDX-License-Identifier: Apache-2.0
"""Usage: run_command_test.py PROGRAM"""
import contextlib
import glob
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

from run_command_kit import (PROGRAM, ENVIRONMENT, LIMIT, HEAD, TuttiRunCase, python, tutti_run, launcher, runs, wait_until,
                             said)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import counted_unittest  # noqa: E402


class Environments(TuttiRunCase):
    def test_each_process_has_its_own_tf_config_and_the_same_job(self):
        body = 'say("config=" + os.environ["TF_CONFIG"]); say("job=" + os.environ["TUTTI_JOB_ID"])\n' \
               'say(f"restart={restart}"); say("secret=" + os.environ["TUTTI_JOB_SECRET_FILE"])\n' \
               'mark("done") if task == "ps" else wait_for("done")'  # parameter servers are stopped at the end
        code, output, errors = tutti_run("-n", "5", "--ps", "1", "--chief", "--", *python(body))
        self.assertEqual((code, errors), (0, ""))
        configs = {task: json.loads(text) for task, text in said(output, "config").items()}
        self.assertEqual(sorted(configs), ["chief-0", "ps-0", "worker-0", "worker-1", "worker-2"])
        clusters = [config["cluster"] for config in configs.values()]
        self.assertTrue(all(cluster == clusters[0] for cluster in clusters))
        self.assertEqual({job: len(addresses) for job, addresses in clusters[0].items()},
                         {"chief": 1, "worker": 3, "ps": 1})
        addresses = [address for job in clusters[0].values() for address in job]
        self.assertEqual(len(set(addresses)), 5)
        self.assertTrue(all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses))
        for name, config in configs.items():
            self.assertEqual(name, "{type}-{index}".format(**config["task"]))
        self.assertEqual(len(set(said(output, "job").values())), 1)
        self.assertEqual(set(said(output, "restart").values()), {"0"})
        self.assertEqual(len(set(said(output, "secret").values())), 1)

    def test_jobs_have_different_ids_and_addresses(self):
        body = 'say("job=" + os.environ["TUTTI_JOB_ID"]); say("config=" + os.environ["TF_CONFIG"])'
        first, second = (tutti_run("-n", "1", "--", *python(body))[1] for _ in range(2))
        for what in ("job", "config"):
            self.assertNotEqual(said(first, what), said(second, what))

    def test_secret_is_private_and_removed_after_job(self):
        body = 'path = os.environ["TUTTI_JOB_SECRET_FILE"]; say("path=" + path)\n' \
               'say("file=%o" % os.stat(path).st_mode); say("bytes=%d" % os.stat(path).st_size)\n' \
               'say("folder=%o" % os.stat(os.path.dirname(path)).st_mode); say("text=" + open(path).read())'
        _, output, _ = tutti_run("-n", "1", "--", *python(body))
        self.assertEqual(said(output, "file"), {"worker-0": "100600"})
        self.assertEqual(said(output, "folder"), {"worker-0": "40700"})
        self.assertGreaterEqual(int(said(output, "bytes")["worker-0"]), 32)
        path = said(output, "path")["worker-0"]
        self.assertFalse(os.path.exists(os.path.dirname(path)))
        again = said(tutti_run("-n", "1", "--", *python(body))[1], "text")
        self.assertNotEqual(again, said(output, "text"))

    def test_thread_count_defaults_to_share_of_cores(self):
        body = 'say("threads=" + os.environ["OMP_NUM_THREADS"])'
        cores = len(os.sched_getaffinity(0))
        for processes in (1, cores, cores + 1):
            _, output, _ = tutti_run("-n", str(processes), "--", *python(body))
            self.assertEqual(set(said(output, "threads").values()), {str(max(1, cores // processes))})
        _, output, _ = tutti_run("-n", "1", "--", *python(body), env={"OMP_NUM_THREADS": "7"})
        self.assertEqual(said(output, "threads"), {"worker-0": "7"})
        _, output, _ = tutti_run("-n", "1", "--env", "OMP_NUM_THREADS=8", "--", *python(body),
                                 env={"OMP_NUM_THREADS": "7"})
        self.assertEqual(said(output, "threads"), {"worker-0": "8"})

    def test_variables_and_arguments_arrive_unchanged(self):
        body = 'say("values=%s %s" % (os.environ["A"], os.environ["B"])); say("arguments=%r" % sys.argv[1:])\n' \
               'say("input=%r" % sys.stdin.read())'
        _, output, _ = tutti_run("-n", "1", "--env", "A=x=1 y", "--env", "B=", "--", *python(body), "a b", "--", "-n",
                                 "'")
        self.assertEqual(said(output, "values")["worker-0"], "x=1 y ")
        self.assertEqual(said(output, "arguments")["worker-0"], repr(["a b", "--", "-n", "'"]))
        self.assertEqual(said(output, "input")["worker-0"], "''")

    def test_dashes_before_program_are_optional(self):
        body = 'say("arguments=%r" % sys.argv[1:])'
        for flags in (("-n", "2"), ("-n2",), ("--chief", "--workers", "1", "--bind-cores"), ("--workers=2", "--grace=1")):
            with self.subTest(flags):
                output = self.output(*flags, *python(body), "-n", "7", "--", "x", "--grace")
                self.assertEqual(list(said(output, "arguments").values()), [repr(["-n", "7", "--", "x", "--grace"])] * 2)

    def test_bind_cores_assigns_each_process_its_share(self):
        body = 'say("cores=%s" % sorted(os.sched_getaffinity(0)))'
        own = sorted(os.sched_getaffinity(0))
        _, output, _ = tutti_run("-n", str(len(own)), "--bind-cores", "--", *python(body))
        self.assertEqual(said(output, "cores"), {f"worker-{i}": str([core]) for i, core in enumerate(own)})
        _, output, _ = tutti_run("-n", "2", "--", *python(body))
        self.assertEqual(set(said(output, "cores").values()), {str(own)})


class Failures(TuttiRunCase):
    def test_first_failure_is_reported_first_and_ends_job(self):
        body = 'say(f"pid={os.getpid()}")\nif index != 2: time.sleep(100)\n' \
               'for i in range(30): say(f"step {i}", sys.stderr)\nos.kill(os.getpid(), signal.SIGKILL)'
        code, output, errors = tutti_run("-n", "4", "--grace", "30", "--", *python(body))
        self.assertEqual(code, 128 + 9)
        own = [line for line in errors.splitlines() if not line.startswith("[")]
        self.assertRegex(own[0], r"^tutti run: worker-2 failed first: killed by signal 9 \(SIGKILL\) after [\d.]+ s$")
        self.assertEqual(own[1], "    its last lines:")
        self.assertEqual(own[2:14], [f"    [worker-2]: step {i}" for i in range(18, 30)])
        self.assertEqual(own[14], "tutti run: ending worker-0, worker-1, worker-3 (SIGTERM; SIGKILL after 30 s)")
        self.assertEqual(own[15], "tutti run: exit code 137")
        self.assertRegex(own[16], r"^    worker-0: killed by signal 15 \(SIGTERM\) after")
        for pid in said(output, "pid").values():
            self.assertFalse(runs(pid))

    def test_exit_code_is_forwarded(self):
        code, _, errors = tutti_run("-n", "2", "--", *python('if index == 0: sys.exit(42)\ntime.sleep(100)'))
        self.assertEqual(code, 42)
        self.assertIn("worker-0 failed first: exited with code 42", errors)
        self.assertIn("no output", errors)

    def test_process_ignoring_sigterm_is_killed_after_grace_period(self):
        body = 'if index == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN); mark("deaf"); time.sleep(100)\n' \
               'wait_for("deaf"); sys.exit(1)'
        errors = self.errors(1, "-n", "2", "--grace", "0.2", "--", *python(body))
        self.assertIn("tutti run: killing worker-0\n", errors)
        self.assertIn("worker-0: killed by signal 9 (SIGKILL)", errors)

    def test_stopped_process_is_terminated(self):
        body = 'if index == 0: mark("here"); os.kill(os.getpid(), signal.SIGSTOP)\n' \
               'wait_for("here"); time.sleep(0.1); sys.exit(5)'
        self.assertIn("worker-0: killed by signal 15 (SIGTERM)", self.errors(5, "-n", "2", "--", *python(body)))

    def test_job_ends_at_its_deadline(self):
        errors = self.errors(124, "-n", "2", "--timeout", "2", "--", *python('time.sleep(100)'))
        self.assertIn("tutti run: timed out; ending worker-0, worker-1 (SIGTERM; SIGKILL after 30 s)\n", errors)

    def test_parameter_servers_end_after_workers(self):
        body = 'if task == "ps": time.sleep(100)\nsay("done")'
        code, output, errors = tutti_run("-n", "4", "--ps", "2", "--chief", "--", *python(body))
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(sorted(output.splitlines()), ["[chief-0]: done", "[worker-0]: done"])
        errors = self.errors(6, "-n", "2", "--ps", "1", "--", *python('if task == "ps": sys.exit(6)\ntime.sleep(100)'))
        self.assertIn("ps-0 failed first", errors)

    def test_open_file_limit_is_raised_for_many_processes(self):
        def limit(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        words = [PROGRAM, "run", "-n", "30", "--control", "none", "--"]
        result = subprocess.run(words + ["sh", "-c", "ulimit -Sn"], capture_output=True, text=True, timeout=LIMIT,
                                env=ENVIRONMENT, preexec_fn=limit(64, 256))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(re.findall(r": (\d+)$", result.stdout, re.MULTILINE), ["64"] * 30)
        result = subprocess.run(words + ["true"], capture_output=True, text=True, timeout=LIMIT, env=ENVIRONMENT,
                                preexec_fn=limit(64, 64))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "tutti: run: 30 processes: expected a limit of 214 open files, got 64; try a higher "
                                        "hard limit (ulimit -Hn 214), or fewer processes\n")


@contextlib.contextmanager
def memory_group(mebibytes):
    """Yields a shell command that enters a new control group with a memory limit, or None if that is not permitted."""
    name = f"tutti_test_{os.getpid()}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = pathlib.Path(root, name)
        try:
            path.mkdir()
            (path / limit).write_text(str(mebibytes << 20))
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
            continue
        try:
            yield f"echo $$ > {path}/cgroup.procs"
        finally:
            with contextlib.suppress(OSError):
                path.rmdir()
        return
    yield None


class Threads(unittest.TestCase):
    def test_start_failure_error_names_limits_to_raise(self):
        # Stacks of 2^47 bytes do not fit into the address space, so threads cannot be started, as
        # under ulimit -u or -v.
        result = subprocess.run(["sh", "-c", f'ulimit -s {1 << 37} && exec "$0" run -n 2 -- true', PROGRAM], text=True,
                                capture_output=True, timeout=60, check=False)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Atutti: thread '.*': cannot be started in addition to \d+ threads of this process: "
                                        r"Resource temporarily unavailable; raise .*ulimit -u.*ulimit -v.*\n\Z")


class MemoryKills(unittest.TestCase):
    def test_out_of_memory_kills_are_reported(self):
        """Runs the complete job in a control group, whose memory limit the worker exceeds."""
        with memory_group(256) as enter:  # the launcher itself needs 100 MiB under sanitizers
            if not enter:
                self.skipTest("requires permission to create a control group")
            body = 'open("/proc/self/oom_score_adj", "w").write("1000")\nblocks = []\n' \
                   'while True: blocks.append(bytearray(os.urandom(1 << 20)))'
            words = [PROGRAM, "run", "-n", "1", "--", *python(body)]
            result = subprocess.run(["sh", "-c", f"{enter}; exec {shlex.join(words)}"], text=True, capture_output=True,
                                    timeout=LIMIT, env=ENVIRONMENT)
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertRegex(result.stderr, r"worker-0 failed first: killed by signal 9 \(SIGKILL\), cgroup oom_kill \+1 after")


class Restarts(TuttiRunCase):
    def test_failed_process_is_restarted_as_same_task(self):
        body = 'say(f"config{restart}=" + os.environ["TF_CONFIG"])\n' \
               'if index == 1 and restart < 2: os.kill(os.getpid(), signal.SIGKILL)'
        code, output, errors = tutti_run("-n", "2", "--max-restarts", "2", "--", *python(body))
        self.assertEqual(code, 0)
        configs = [said(output, f"config{restart}") for restart in range(3)]
        self.assertEqual([sorted(config) for config in configs], [["worker-0", "worker-1"], ["worker-1"], ["worker-1"]])
        self.assertEqual(len({config["worker-1"] for config in configs}), 1)
        self.assertRegex(errors, r"worker-1: killed by signal 9 \(SIGKILL\) after [\d.]+ s; restarting it "
                                 r"\(restart 1 of 2\)\n")

    def test_restarts_per_task_are_counted(self):
        code, output, errors = tutti_run("-n", "2", "--max-restarts", "2", "--", *python(
            'say(f"try={restart}")\nif index == 0: sys.exit(9)\ntime.sleep(100)'))
        self.assertEqual(code, 9)
        self.assertEqual(re.findall(r"^\[worker-0\]: try=(\d)$", output, re.MULTILINE), ["0", "1", "2"])
        self.assertIn("not restarted: it was already restarted 2 times", errors)
        self.assertRegex(errors, r"    worker-0: exited with code 9 after [\d.]+ s, restarts: 2\n")

    def test_repeated_immediate_failure_ends_restarts(self):
        errors = self.errors(1, "-n", "1", "--max-restarts", "1000", "--", "false")
        self.assertEqual(errors.count("; restarting it"), 4)
        self.assertIn("not restarted: it failed within a second 5 times in a row", errors)

    def test_invalid_usage_is_not_restarted(self):
        errors = self.errors(2, "-n", "1", "--max-restarts", "3", "--", "sh", "-c", "exit 2")
        self.assertIn("not restarted: wrong usage would fail again", errors)

    def test_restart_of_deleted_program_ends_job_gracefully(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program")
            program.write_text(f"#!/bin/sh\nexec {sys.executable} -S {folder}/body \"$@\"\n", encoding="utf-8")
            program.chmod(0o755)
            pathlib.Path(folder, "body").write_text(HEAD + f'''
if index == 0:
    wait_for("ready")
    say("the reason"); os.unlink("{program}"); sys.exit(5)
signal.signal(signal.SIGTERM, lambda *_: (say("saved"), os._exit(0)))
if os.fork() == 0:
    os.setsid(); say(f"daemon={{os.getpid()}}"); mark("ready"); time.sleep(1000)
while True: time.sleep(0.05)
''', encoding="utf-8")
            code, output, errors = tutti_run("-n", "2", "--max-restarts", "3", "--", str(program))
        self.assertEqual(code, 5)
        self.assertIn("worker-0 failed first: exited with code 5", errors)
        self.assertIn("not restarted: run: expected a program, got", errors)
        self.assertIn("    [worker-0]: the reason\n", errors)
        self.assertIn("[worker-1]: saved", output)
        self.assertFalse(runs(int(said(output, "daemon")["worker-1"])))


class Requests(TuttiRunCase):
    # Sleeps are short: if a signal arrives just before a sleep, Python runs its handler only after
    # the sleep.
    BODY = """
def stop(number, frame):
    say(f"got {number}")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)
say(f"ready {task} {index}")
while True: time.sleep(0.05)
"""

    def end_after(self, number, *words):
        """Sends a signal to a job of two workers once both are ready; returns exit code and output."""
        with launcher("-n", "2", "--", *words) as job:
            job.wait_for_each("[worker-0]: ready", "[worker-1]: ready")
            job.process.send_signal(number)
            return job.end()

    def test_signals_are_forwarded_and_processes_stop_with_checkpoint(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            body = self.BODY.replace("signal.SIGINT", f"signal.{number.name}")
            code, output = self.end_after(number, *python(body))
            self.assertEqual(code, 75)
            self.assertEqual(output.count(f"]: got {int(number)}\n"), 2, output)
            self.assertIn(f"tutti run: {number.name}: requested worker-0, worker-1 to stop", output)

    def test_exit_codes_of_stopping_processes_are_reported(self):
        for exits, expected in (("sys.exit(0)", 0), ("sys.exit(75 if index else 3)", 3)):
            with self.subTest(exits):
                code, output = self.end_after(signal.SIGTERM, *python(self.BODY.replace("sys.exit(75)", exits)))
                self.assertEqual(code, expected, output)

    def test_second_signal_kills_processes(self):
        body = 'signal.signal(signal.SIGINT, lambda *_: say("later"))\nsay("ready")\nwhile True: time.sleep(0.05)'
        with launcher("-n", "2", "--grace", "1000", "--", *python(body)) as job:
            job.wait_for_each("[worker-0]: ready", "[worker-1]: ready")
            job.process.send_signal(signal.SIGINT)
            job.wait_for_each("[worker-0]: later", "[worker-1]: later")
            job.process.send_signal(signal.SIGINT)
            code, output = job.end()
        self.assertEqual(code, 128 + 9)
        self.assertIn("tutti run: killing worker-0, worker-1\n", output)

    def test_unhandled_signal_kills_process(self):
        self.assertEqual(self.end_after(signal.SIGTERM, *python('say("ready"); time.sleep(100)'))[0], 128 + 15)

    def test_user_signals_are_forwarded_without_ending_job(self):
        body = 'signal.signal(signal.SIGUSR1, lambda *_: (say("usr1"), sys.exit(0)))\nsay("ready")\n' \
               'while True: time.sleep(0.05)'
        code, output = self.end_after(signal.SIGUSR1, *python(body))
        self.assertEqual(code, 0)
        self.assertEqual(output.count("usr1"), 2)

    def test_process_that_stops_on_request_ends_job(self):
        body = self.BODY.replace("while True:", 'if index == 1: wait_for("ready"); sys.exit(75)\nmark("ready")\nwhile True:')
        code, output, errors = tutti_run("-n", "2", "--max-restarts", "3", "--", *python(body))
        self.assertEqual(code, 75)
        self.assertIn("[worker-0]: got 15", output)

    def test_process_killed_by_stop_request_counts_as_stopped(self):
        body = 'if index == 1: wait_for("ready"); sys.exit(75)\nmark("ready"); time.sleep(100)'
        errors = self.errors(75, "-n", "2", "--max-restarts", "3", "--", *python(body))
        self.assertRegex(errors, r"    worker-0: killed by signal 15 \(SIGTERM\) after")
        self.assertIn("a process has stopped on request; ending worker-0", errors)


class NoOrphans(TuttiRunCase):
    CHILD = 'import subprocess\nhelper = subprocess.Popen(["sleep", "1000"]{how})\n' \
            'say(f"pid={os.getpid()}"); say(f"helper={helper.pid}")\n'

    def pids(self, output):
        found = list(said(output, "pid").values()) + list(said(output, "helper").values())
        self.assertEqual(len(found), 4, output)
        return found

    def test_orphaned_child_processes_are_ended(self):
        for how in ("", ", start_new_session=True"):
            output = self.output("-n", "2", "--", *python(self.CHILD.replace("{how}", how)))
            for pid in self.pids(output):
                self.assertFalse(runs(pid))

    def test_killed_launcher_leaves_no_processes(self):
        for how in ("", ", start_new_session=True"):
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                body = self.CHILD.replace("{how}", how) + 'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)'
                with launcher("-n", "2", "--", *python(body), env={"TMPDIR": folder}) as job:
                    job.wait_for_each(*(f"[worker-{i}]: {what}=" for i in (0, 1) for what in ("pid", "helper")))
                    pids = self.pids(job.text())
                    self.assertEqual(len(glob.glob(folder + "/tutti-*/secret")), 1)
                    job.process.kill()
                    wait_until(lambda: not any(runs(pid) for pid in pids), f"the end of processes {pids}")
                    wait_until(lambda: os.listdir(folder) == [], "the removal of the secret")


class DryRun(TuttiRunCase):
    def test_printed_commands_start_the_processes(self):
        with tempfile.TemporaryDirectory() as home:
            program = python('say("config=" + os.environ["TF_CONFIG"]); say("arguments=%r" % sys.argv[1:])\n'
                             'path = os.environ["TUTTI_JOB_SECRET_FILE"]; say("secret=%o" % os.stat(path).st_mode)')
            code, text, errors = tutti_run("-n", "3", "--ps", "1", "--dry-run", "--env", "A=it's", "--bind-cores", "--",
                                           *program, "a 'b' $HOME")
            self.assertEqual((code, errors), (0, ""))
            names = re.findall(r"^# (\w+-\d)$", text, re.MULTILINE)
            self.assertEqual(names, ["worker-0", "worker-1", "ps-0"])
            result = subprocess.run(["sh", "-eu"], input=text, text=True, capture_output=True, timeout=LIMIT,
                                    env={**ENVIRONMENT, "HOME": home})
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        tasks = [json.loads(line[7:])["task"] for line in lines if line.startswith("config=")]
        self.assertEqual(["{type}-{index}".format(**task) for task in tasks], names)
        self.assertEqual([line for line in lines if "arguments" in line], ["arguments=" + repr(["a 'b' $HOME"])] * 3)
        self.assertEqual(lines.count("secret=100600"), 3)

    def test_tasks_are_distributed_over_hosts(self):
        text = self.output("-n", "5", "--chief", "--hosts", "a,fe80::1,[fe80::2]", "--port", "4000", "--dry-run", "--",
                           "./not/here", "x")
        processes = [(name, host, json.loads(config), command) for name, host, config, command in re.findall(
            r"^# (\S+) on (\S+)\nTF_CONFIG='([^']*)' (.*)$", text, re.MULTILINE)]
        self.assertEqual([(name, host) for name, host, _, _ in processes],
                         [("chief-0", "a"), ("worker-0", "a"), ("worker-1", "fe80::1"), ("worker-2", "fe80::1"),
                          ("worker-3", "[fe80::2]")])
        for name, _, config, command in processes:
            self.assertEqual(config["cluster"], {"chief": ["a:4000"], "worker": ["a:4001", "[fe80::1]:4000",
                                                                                 "[fe80::1]:4001", "[fe80::2]:4000"]})
            self.assertEqual("{type}-{index}".format(**config["task"]), name)
            self.assertTrue(command.endswith(" ./not/here x"), command)
            self.assertNotIn("OMP_NUM_THREADS", command)


class WrongUsage(TuttiRunCase):
    def test_invalid_usage_prints_one_line_and_exits_with_2(self):
        for words, message in (
                (("-n", "2", "--"), "run: expected a program, got none; use tutti run -n 2 ./program"),
                (("-n", "2"), "run: expected a program, got none; use tutti run -n 2 ./program"),
                (("--max-restart", "2", "true"), "unknown flag --max-restart"),
                (("--max-restart", "2", "true"), "; did you mean '--max-restarts'?"),
                (("-n", "0", "--", "true"), "run: -n: expected a number from 1 to 1024, got 0"),
                (("-n", "x", "--", "true"), "-n: expected a 64-bit integer, got 'x'"),
                (("--", "true"), "run: expected -n N or --workers W, got neither"),
                (("-n", "3", "--workers", "1", "--ps", "1", "--", "true"),
                 "run: expected -n 3 to equal the total number of tasks, got workers: 1, parameter servers: 1, chiefs: 0"),
                (("-n", "2", "--ps", "2", "--", "true"), "expected -n 2 to equal the total number of tasks, got workers: 0, "),
                (("-n", "1", "--ps", "2", "--", "true"), "expected -n 1 to equal the total number of tasks, got workers: 0, "),
                (("--workers", "0", "--ps", "1", "--", "true"), "at least one worker or chief, got workers: 0, "),
                (("-n", "1", "--", "./no/such"), "run: expected a program, got './no/such': no such file"),
                (("-n", "1", "--", "no-such-program"), "got 'no-such-program': not found in PATH"),
                (("-n", "1", "--", "/"), "got '/': it is a folder"),
                (("-n", "1", "--", "/etc/passwd"), "got '/etc/passwd': it may not be executed"),
                (("-n", "1", "--", ""), "got '': not found in PATH"),
                (("-n", "1", "--env", "A", "--", "true"), "run: --env: expected NAME=VALUE, got 'A'"),
                (("-n", "1", "--grace", "-1", "--", "true"), "run: --grace: expected a number from 0 to 1e+06, got -1"),
                (("-n", "1", "--max-restarts", "-1", "--", "true"), "run: --max-restarts: expected a number from 0 to"),
                (("-n", "2", "--hosts", "a,b", "--", "true"), "run: --hosts: tutti starts processes only on this machine"),
                (("-n", "2", "--hosts", "a,,b", "--dry-run", "--", "true"), "run: --hosts: expected names"),
                (("-n", "2", "--hosts", "a:40,b", "--dry-run", "--", "true"), "run: --hosts: expected names"),
                (("-n", "1", "--fast", "--", "true"), "unknown flag --fast")):
            with self.subTest(words):
                code, output, errors = tutti_run(*words)
                self.assertEqual(code, 2, errors)
                self.assertEqual(output, "")
                self.assertIn(message, errors)
                self.assertEqual(errors.count("\n"), 1)

    def test_non_executable_file_is_rejected(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "text")
            path.write_bytes(b"\0no program")
            path.chmod(0o755)
            code, _, errors = tutti_run("-n", "2", "--", str(path))
        self.assertEqual((code, errors), (2, f"tutti: run: cannot start '{path}': Exec format error\n"))

    def test_help_lists_examples_and_exit_codes(self):
        for words in (("--help",), ("-n", "2", "--help"), ("--help", "--", "true")):
            code, text, _ = tutti_run(*words)
            self.assertEqual(code, 0)
            for part in ("--max-restarts", "tutti run -n 4 ./train --epochs 3", "Exit code:"):
                self.assertIn(part, text)


if __name__ == "__main__":
    counted_unittest.main(apart=["Threads", "MemoryKills"])
