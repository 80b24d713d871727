#!/usr/bin/env python3
# Runs the program `tutti` and checks its output and exit codes.
# SPDX-License-Identifier: Apache-2.0
"""Usage: tutti_cli_test.py PROGRAM [TuttiProgram.test_NAME]"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from program_case import ProgramCase

PROGRAM = os.path.abspath(sys.argv.pop(1))
ENVIRONMENT = {**os.environ, "TUTTI_CUDA": "off"}  # hides GPUs, which gpus_cli_test.py covers


def run(*words):
    result = subprocess.run([PROGRAM, *words], text=True, capture_output=True, timeout=600, env=ENVIRONMENT)
    return result.returncode, result.stdout, result.stderr


class TuttiProgram(ProgramCase):
    run_program = staticmethod(run)

    def test_devices_lists_the_processor_and_its_virtual_devices(self):
        text = self.output("devices")
        self.assertIn("cpu:0-63", text)
        self.assertIn("gpu   none: TUTTI_CUDA=off hides the GPUs; unset it\n", text)

    def test_devices_json_agrees_with_the_system(self):
        report = json.loads(self.output("devices", "--json"))
        cpu = report["devices"][0]
        self.assertEqual(cpu["type"], "cpu")
        self.assertEqual(cpu["cores"], len(os.sched_getaffinity(0)))
        self.assertEqual(cpu["memory_bytes"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        self.assertEqual(report["default_devices"], "cpu:0")
        self.assertFalse(report["gpu"]["available"])

    def test_core_count_follows_process_affinity(self):
        result = subprocess.run(["taskset", "-c", str(min(os.sched_getaffinity(0))), PROGRAM, "devices", "--json"],
                                text=True, capture_output=True, check=True)
        self.assertEqual(json.loads(result.stdout)["devices"][0]["cores"], 1)

    def test_unusable_xla_plugin_error_states_remedy(self):
        environment = os.environ | {"TUTTI_PJRT_PLUGIN": "/nowhere/plugin.so"}
        def output(*arguments):
            return subprocess.run([PROGRAM, *arguments], text=True, capture_output=True, env=environment).stdout
        self.assertIn("xla   none: PJRT plugin /nowhere/plugin.so cannot be opened", output("devices"))
        xla = json.loads(output("devices", "--json"))["xla"]
        self.assertEqual((xla["available"], xla["num_devices"]), (False, 0))
        self.assertIn("TUTTI_PJRT_PLUGIN", xla["reason"])
        finding = next(each for each in json.loads(output("doctor", "--json"))["machine"] if each["subject"] == "XLA")
        self.assertEqual(finding["verdict"], "warning")

    def test_doctor_lists_libraries_and_prints_verdict(self):
        code, text, _ = run("doctor")
        self.assertIn(code, (0, 1))
        for word in ("oneDNN", "libpng", "libjpeg", "MPI", "vector instructions", "memory", "Fashion-MNIST"):
            self.assertIn(word, text)
        self.assertTrue(text.strip().splitlines()[-1].startswith("Verdict: "))

    def test_doctor_json_verdict_matches_the_exit_code(self):
        code, text, _ = run("doctor", "--json")
        report = json.loads(text)
        self.assertEqual(code, 1 if report["verdict"] == "bad" else 0)
        verdicts = {entry["verdict"] for part in ("build", "machine") for entry in report[part]} - {"none"}
        order = ["ok", "warning", "bad"]
        self.assertEqual(report["verdict"], max(verdicts, key=order.index))

    def test_doctor_does_not_report_missing_accelerator_as_ok(self):
        report = json.loads(run("doctor", "--json")[1])
        gpu = next(entry for entry in report["machine"] if entry["subject"] == "GPU")
        self.assertEqual(gpu["verdict"], "none", gpu)
        if report["verdict"] == "ok":
            self.assertRegex(report["summary"], "^trains on CPUs, .*; without .*GPU")

    def test_doctor_and_ldd_agree_on_libraries(self):
        def libraries_of(path):
            return subprocess.run(["ldd", path], text=True, capture_output=True, check=True).stdout

        report = json.loads(run("doctor", "--json")[1])
        found = {entry["subject"]: entry["found"] for entry in report["build"]}
        transports = found["transports"].split(", ")
        libraries = libraries_of(PROGRAM)
        for subject, library, transport in (("MPI", "libmpi.so", "MPI"), ("oneDNN", "libdnnl.so", None), ("gRPC", "libgrpc++.so", "TCP")):
            is_there = not found[subject].startswith("not in this build")
            self.assertEqual(is_there, library in libraries, f"{subject}: {found[subject]}\n{libraries}")
            if transport:
                self.assertEqual(is_there, transport in transports, transports)
        # Only the GPU module uses CUDA's libraries, and no program is linked with it. NCCL is
        # loaded on first use.
        self.assertNotRegex(libraries, "libcud|libnccl")
        module = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "lib", "libtutti_cuda.so")
        has_cuda = not found["CUDA"].startswith("not in this build")
        self.assertEqual(has_cuda, os.path.exists(module), found["CUDA"])
        self.assertEqual("NCCL" in transports, has_cuda)
        if has_cuda:
            self.assertRegex(found["CUDA"], r"^\d+\.\d+\.\d+, NCCL 2\.\d+\.\d+$")
            named = {entry["subject"] for entry in report["machine"] if entry["subject"].startswith("libcu")}
            self.assertEqual(named, set(re.findall(r"^\s*(libcu\S+) =>", libraries_of(module), re.MULTILINE)))

    def test_doctor_checks_four_files_of_data_set(self):
        names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

        def finding(*words, **environment):
            result = subprocess.run([PROGRAM, "doctor", "--json", *words], text=True, capture_output=True,
                                    env=ENVIRONMENT | environment)
            return next(each for each in json.loads(result.stdout)["machine"] if each["subject"] == "Fashion-MNIST")

        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                self.assertEqual(finding("--data-dir", folder), {
                    "subject": "Fashion-MNIST", "verdict": "warning", "found": "not found",
                    "advice": "apt-get install dataset-fashion-mnist, or pass --data-dir"})
                open(os.path.join(folder, name), "w", encoding="utf-8").close()
            complete = {"subject": "Fashion-MNIST", "verdict": "ok", "found": folder, "advice": ""}
            self.assertEqual(finding("--data-dir", folder), complete)
            self.assertEqual(finding(TUTTI_DATA_DIR=folder), complete)

    def test_invalid_usage_exits_with_2_and_lists_commands(self):
        errors = self.errors(2, "dance")
        self.assertEqual(errors, "tutti: unknown command 'dance'; expected one of devices, doctor, cluster, conform, bench, ckpt, run\n")
        self.assertIn("expected one of devices, doctor, cluster, conform, bench, ckpt, run", self.errors(2))
        self.assertIn("unknown flag --fix", self.errors(2, "doctor", "--fix"))

    def bench(self, *flags):
        """Returns the rows of the table, as lists of words, and the JSON report."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bench.json")
            text = self.output("bench", "all_reduce", "--rounds", "2", "--json", path, *flags)
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
        rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(rows), len(report["results"]))
        return rows, report

    def check_cell(self, cell, words, size, ranks):
        self.assertLessEqual(cell["time_us"]["min"], cell["time_us"]["median"])
        self.assertLessEqual(cell["time_us"]["median"], cell["time_us"]["max"])
        algbw = size / cell["time_us"]["median"] / 1e3
        self.assertAlmostEqual(cell["algbw"], algbw, delta=1e-6 * algbw)
        self.assertAlmostEqual(cell["busbw"], algbw * 2 * (ranks - 1) / ranks, delta=1e-6 * algbw)
        self.assertAlmostEqual(float(words[0]), cell["time_us"]["median"], delta=0.01)
        self.assertEqual(words[3], "0")
        self.assertEqual(cell["wrong"], 0)

    def check_beside_memory(self, row):
        """Checks the floor, the least time that the memory accesses of a sum take. Floor and sum are measured alternately."""
        floor, time, of_floor = row["floor_us"], row["in_place"]["time_us"], row["of_floor"]
        self.assertGreater(floor["min"], 0)
        self.assertLessEqual(of_floor["min"], of_floor["median"])
        self.assertLessEqual(of_floor["median"], of_floor["max"])
        self.assertGreaterEqual(of_floor["min"], 0.999 * floor["min"] / time["max"])
        self.assertLessEqual(of_floor["max"], 1.001 * floor["max"] / time["min"])

    def test_bench_prints_same_columns_as_nccl_tests(self):
        for ranks in (2, 3):
            rows, report = self.bench("-b", "4", "-e", "64K", "-f", "128", "-n", "4", "-w", "1", "-c", "1", "--op-names",
                                      "canonical", "--replicas", str(ranks))
            self.assertEqual([r["size"] for r in report["results"]], [4, 512, 65536])
            self.assertEqual(report["left_out"], [])
            self.assertEqual(report["ranks"], ranks)
            self.assertIn(report["pingpong"]["before"], ("near", "far", "busy", "one core"))
            for words, row in zip(rows, report["results"]):
                self.assertEqual(words[:5], [str(row["size"]), str(row["size"] // 4), "float", "sum", "-1"])
                self.check_cell(row["out_of_place"], words[5:9], row["size"], ranks)
                self.check_cell(row["in_place"], words[9:13], row["size"], ranks)
                self.assertEqual(words[-1], "canonical")
                self.assertEqual(row["name"], "canonical")
                self.check_beside_memory(row)

    def test_bench_checks_every_type_and_operation(self):
        for dtype in ("float", "double", "half", "bfloat16", "int32", "int64", "uint8", "bool"):
            for op in ("sum", "prod", "min", "max", "avg"):
                if (dtype == "bool" and op not in ("min", "max")) or (op == "avg" and dtype.startswith(("int", "uint"))):
                    continue
                with self.subTest(dtype, op=op):
                    for shape in ("spread", "local"):
                        rows, _ = self.bench("-b", "1000", "-e", "1000", "-n", "1", "-w", "0", "-d", dtype, "-o", op,
                                             "--op-names", "canonical", "--gradients", "resnet50", "--shape", shape)
                        self.assertEqual(rows[0][12], "0")

    def test_bench_accepts_step_in_bytes_and_measures_local_operations(self):
        rows, report = self.bench("-b", "1K", "-e", "3K", "-i", "1K", "-n", "2", "--shape", "local")
        self.assertEqual(sorted({r["size"] for r in report["results"]}), [1024, 2048, 3072])
        names = {r["name"] for r in report["results"]}
        self.assertLessEqual({"canonical", "ring", "hierarchical_copy", "reduction_to_one_device"}, names)
        self.assertTrue(all(r["out_of_place"] is None for r in report["results"]))
        self.assertEqual(rows[0][5:9], ["-"] * 4)

    def test_bench_measures_processes_of_job(self):
        for ranks, transport, word in ((2, "shm", "shared memory"), (3, "tcp", "tcp 127.0.0.1:")):
            with self.subTest(transport), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "bench.json")
                text = self.output("run", "-n", str(ranks), "--", PROGRAM, "bench", "all_reduce", "-b", "1K", "-e", "64K", "-f", "64",
                                   "-n", "3", "--rounds", "2", "--op-names", "canonical,ring", "--transport", transport, "--json", path)
                self.assertIn(f"processes, {ranks} ranks on", text)
                self.assertIn(f"rank 1: {word}", text)
                lines = [line.split() for line in text.splitlines() if "]: #" not in line]
                self.assertEqual({words[0] for words in lines}, {"[worker-0]:"})  # only worker 0 prints results
                with open(path, encoding="utf-8") as file:
                    report = json.load(file)
                self.assertEqual((report["shape"], report["ranks"]), ("processes", ranks))
                self.assertEqual([(row["name"], row["size"]) for row in report["results"]],
                                 [(name, size) for name in ("canonical", "ring") for size in (1024, 65536)])
                for words, row in zip(lines, report["results"]):
                    self.check_cell(row["out_of_place"], words[6:10], row["size"], ranks)
                    self.check_cell(row["in_place"], words[10:14], row["size"], ranks)

    def test_bench_of_job_skips_unsupported_combinations(self):
        job = ("run", "-n", "2", "--", PROGRAM, "bench", "all_reduce", "-e", "1K", "--rounds", "1", "-n", "1")
        code, text, errors = run(*job, "-d", "bool", "-o", "sum", "--op-names", "ring")
        self.assertEqual(code, 1, text + errors)
        self.assertIn("# left out: ring: does not support SUM of bool", text)
        self.assertIn("every name was left out", errors)
        self.assertIn("expected one process, got a job of 2", self.errors(2, *job, "--shape", "local"))

    def test_bench_reports_that_check_is_disabled(self):
        rows, report = self.bench("-b", "64", "-e", "64", "-n", "1", "-c", "0", "--op-names", "canonical")
        self.assertEqual(rows[0][12], "N/A")
        self.assertIsNone(report["results"][0]["in_place"]["wrong"])

    def test_bench_error_names_invalid_flag(self):
        for flags, text in ((("-b", "1Q"), "-b: expected a number of bytes"), (("-b", "2K", "-e", "1K"), "-b: expected"),
                            (("-f", "1"), "-f: expected 2"), (("-c", "7"), "-c: expected 0 to 1"),
                            (("-d", "float8"), "-d: "), (("-o", "xor"), "-o: "), (("--replicas", "1"), "--replicas: "),
                            (("--op-names", "canonical,magic"), "got 'magic'"), (("--plugin", "/no.so"), "--plugin: "),
                            (("-i", "1", "-e", "1G"), "-i: expected steps"), (("--shape", "round"), "--shape: expected one"),
                            (("--fast",), "unknown flag --fast")):
            code, output, errors = run("bench", "all_reduce", *flags)
            self.assertEqual((code, output), (2, ""), errors)
            self.assertIn(text, errors)
        self.assertIn("no command given; expected one of all_reduce", self.errors(2, "bench"))
        self.assertIn("unknown command 'dance'; expected one of all_reduce", self.errors(2, "bench", "dance"))

    def test_bench_without_measurements_fails(self):
        code, output, errors = run("bench", "all_reduce", "-e", "1K", "-d", "bool", "-o", "sum", "--op-names",
                                   "canonical")
        self.assertEqual(code, 1)
        self.assertIn("left out: canonical: does not support", output)
        self.assertIn("nothing to measure", errors)

    def test_help_exits_with_0(self):
        self.assertIn("devices", self.output("--help"))

    def test_conform_checks_sample_and_reports_skipped_cases(self):
        text = self.output("conform", "ring", "--shape", "local", "--sample", "50")
        self.assertRegex(text, r"all_reduce SUM +float32 +[0-9]+ +- ")
        self.assertIn("skipped", text)
        self.assertIn("ring: conforms", text)

    def test_conform_json_has_the_counts_of_each_operation_and_type(self):
        report = json.loads(self.output("conform", "canonical", "--shape", "local", "--sample", "50", "--seed", "7", "--json"))
        self.assertEqual((report["passed"], report["seed"]), (True, "7"))
        self.assertEqual(report["total"]["passed"], sum(row["counts"]["passed"] for row in report["rows"]))
        self.assertEqual(report["failures"], [])

    def test_conform_runs_single_case_by_name(self):
        case = "local/values/all_reduce/SUM/float32/3x17/in_place+4/even/0/1"
        self.assertEqual(self.output("conform", "canonical", "--case", case).strip(), "passed " + case)

    def test_conform_names_case_in_which_plugin_crashes(self):
        plugin = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "plugins", "reduce_crashes.so")
        for words in ([], ["--case", "local/values/all_reduce/SUM/float32/3x17/in_place+4/even/0/1"]):
            errors = self.errors(-signal.SIGABRT, "conform", "--plugin", plugin, "--shape", "local", *words)
            self.assertRegex(errors, r"the operation crashed \(signal 6\); to repeat the case: tutti conform "
                             r"plugin_reduce_crashes --plugin .*reduce_crashes.so --case local/\S+")

    def test_conform_names_case_in_which_plugin_hangs(self):
        plugin = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "plugins", "reduce_hangs.so")
        words = ["conform", "--plugin", plugin, "--shape", "local"]
        case = r"\); to repeat the case: tutti conform plugin_reduce_hangs --plugin .*reduce_hangs.so --case local/\S+"
        errors = self.errors(-signal.SIGALRM, *words, "--limit", "1")
        self.assertRegex(errors, r"the operation hangs: a case took longer than --limit \(signal 14" + case)
        for seconds in (0.5, 2, 8, 32):  # waits longer until the signal arrives during a case
            stopped = subprocess.Popen([PROGRAM, *words], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
            time.sleep(seconds)
            stopped.send_signal(signal.SIGINT)
            errors = stopped.communicate(timeout=60)[1]
            if "stopped" in errors:
                break
        self.assertRegex(errors, r"stopped \(signal 2" + case)

    def test_conform_and_bench_measure_the_error_of_a_lossy_plugin(self):
        plugin = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "plugins", "top_k.so")
        lossy = ("--plugin", plugin, "--shape", "local", "--plugin-options")
        text = self.output("conform", *lossy, "k=0.25", "--sample", "100")
        self.assertRegex(text, r"largest error of a sum: 0\.[0-9]+ of the sum of .* largest magnitudes, in local/\S+\ntop_k: conforms")
        for command in (["conform"], ["bench", "all_reduce", "--rounds", "1"]):
            self.assertIn("top_k has no option 'kk'; expected k; did you mean 'k'?", self.errors(2, *command, *lossy, "kk=0.25"))
        for k, is_exact in (("0.25", False), ("1", True)):
            rows, report = self.bench("-e", "1K", "-n", "1", "-w", "0", "--op-names", "canonical,top_k", *lossy, f"k={k}")
            largest = {row["name"]: row["largest_error"] for row in report["results"]}
            self.assertEqual((largest["canonical"], largest["top_k"] == 0), (0, is_exact))
            self.assertEqual([row["in_place"]["wrong"] for row in report["results"]], [0, 0])

    def test_conform_invalid_usage_exits_with_2(self):
        for words, expected in ((["unknown"], "no operation 'unknown'"), ([], "--plugin"),
                                (["ring", "--case", "local/what"], "no case 'local/what'"),
                                (["ring", "--sample", "-1"], "got 1, -1, 0 and 60"),
                                (["--plugin", "./nowhere.so"], "no such file"),
                                (["ring", "--shape", "round"], "threads")):
            self.assertIn(expected, self.errors(2, "conform", *words))


if __name__ == "__main__":
    unittest.main()
