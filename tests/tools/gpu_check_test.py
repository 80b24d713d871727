#!/usr/bin/env python3
# Runs benchmarks/gpu/gpu_check on simulated GPUs, packed as for another machine, and with missing
# or faulty components.
# SPDX-License-Identifier: Apache-2.0
"""Usage: gpu_check_test.py SOURCE BUILD   (the build needs the programs of benchmarks/gpu)"""
import argparse
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import counted_unittest  # noqa: E402

SOURCE, BUILD = pathlib.Path(sys.argv.pop(1)).resolve(), pathlib.Path(sys.argv.pop(1)).resolve()
CHECK = SOURCE / "benchmarks" / "gpu" / "gpu_check"
sys.path.insert(0, str(CHECK.parent / "check"))
import checks, commands, programs, rows, speed  # noqa: E402, E401
SIMULATED = next((path for folder in ("lib", "tests/cuda_simulation", "bin")
                  for path in [BUILD / folder / "libtutti_cuda_simulated.so"] if path.exists()), None)
GPU = "--simulate" if SIMULATED else "--on-cpu"
MODULE = BUILD / "lib" / "libtutti_cuda.so"


def run(*words, program=CHECK, env=None, timeout=500):
    result = subprocess.run([sys.executable, str(program), *map(str, words)], text=True, capture_output=True, timeout=timeout,
                            env=env, cwd="/")
    return result.returncode, result.stdout, result.stderr


def run_json(*words, **more):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        code, output, errors = run("--json", path, *words, **more)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    return code, {row["name"]: row for row in report["rows"]}, report, output + errors


def write_program(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class WithPlantedPrograms(unittest.TestCase):
    """Build folder whose programs are links to the real ones, except for those that a test replaces."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        (self.folder / "bin").mkdir()
        (self.folder / "lib").mkdir()
        for name in ("tutti", "device_check", "train_resnet", "gpu_bench"):
            (self.folder / "bin" / name).symlink_to(BUILD / "bin" / name)
        for module in (SIMULATED, MODULE if MODULE.exists() else None):
            if module:
                (self.folder / "lib" / module.name).symlink_to(module)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def plant(self, name, text):
        path = self.folder / "bin" / name
        path.unlink()
        write_program(path, text)

    def rows(self, *flags, expected_code=1):
        code, rows, _, text = run_json("--build", self.folder, *flags)
        self.assertEqual(code, expected_code, text)
        return rows

    def row(self, name, *flags):
        return self.rows(GPU, "--only", name, *flags)[name]


class PlantedFailures(WithPlantedPrograms):
    def test_wrong_kernel_is_a_failure(self):
        self.plant("device_check", f'exec {BUILD}/bin/device_check "$@" --spoil add')
        row = self.row("kernels")
        self.assertEqual((row["verdict"], row["kind"]), ("FAIL", "correctness"))
        self.assertIn("add float32", row["detail"])

    def test_check_that_misses_planted_error_is_a_failure(self):
        report = '{"passed": true, "failures": [], "agree": 1, "compared": 1}'
        self.plant("device_check", f"echo '{report}'")
        self.assertIn("did not find the error planted on purpose", self.row("finds errors")["measured"])

    def test_crash_hang_or_invalid_output_is_a_failure(self):
        for text, expected in (("kill -SEGV $$", "SIGSEGV"), ("echo hello", "exit code 0"), ("exit 3", "exit code 3"),
                               ("echo boom >&2; exit 1", "boom"), ("sleep 60", "still running")):
            self.plant("device_check", text)
            begin = time.monotonic()
            row = self.row("gradients", "--budget-seconds", "6.5") if "sleep" in text else self.row("gradients")
            self.assertEqual(row["verdict"], "FAIL", text)
            self.assertIn(expected, row["measured"])
            self.assertLess(time.monotonic() - begin, 20)

    def test_different_loss_curve_is_a_failure(self):
        # The first loss on the GPU is wrong; the losses on cpu:0 are right.
        self.plant("train_resnet", f'{BUILD}/bin/train_resnet "$@" | case "$*" in *"--devices cpu:0 "*) cat;; '
                                   "*) sed 's/\"losses\":\\[[0-9]/\"losses\":[7/';; esac")
        row = self.row("losses float32")
        self.assertEqual(row["verdict"], "FAIL")
        self.assertIn("step 0: loss 7", row["measured"])
        self.assertEqual(len(row["numbers"]["cpu"]), 4)

    def test_non_numeric_losses_are_a_failure(self):
        self.plant("train_resnet", 'case "$*" in *"--devices cpu:0 "*) echo \'{"event": "losses", "losses": [2, 2, 2, 1]}\';; '
                                   '*) echo \'{"event": "losses", "losses": [2, null, 2, 1]}\';; esac')
        self.assertIn("finite losses", self.row("losses float32")["measured"])

    def test_training_program_that_exits_early_is_a_failure(self):
        self.plant("train_resnet", "echo out of luck >&2; exit 1")
        rows = self.rows(GPU, "--only", "resnet50 mixed_bfloat16")
        self.assertIn("out of luck", rows["resnet8 mixed_bfloat16"]["measured"])

    def test_nonzero_exit_code_of_gpu_bench_is_a_failure(self):
        self.plant("gpu_bench", f'{BUILD}/bin/gpu_bench "$@"; exit 1')
        self.assertEqual(self.row("all_reduce canonical x4")["verdict"], "FAIL")

    def test_check_beyond_budget_is_skipped(self):
        row = self.row("gradients", "--budget-seconds", "0.1")
        self.assertEqual(row["verdict"], "skipped")
        self.assertIn("budget of 0.1 s was used up", row["measured"])

    def test_interrupt_ends_programs_and_prints_table(self):
        started = self.folder / "started"
        self.plant("device_check", f"touch {started}; sleep 61")
        process = subprocess.Popen([sys.executable, str(CHECK), "--build", str(self.folder), GPU, "--only", "gradients"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 100
        while not started.exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.terminate()
        output, _ = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 1)
        self.assertIn("interrupted", output)


class WithoutDriver(WithPlantedPrograms):
    def test_missing_driver_is_reported_on_one_line(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a driver")
        rows = self.rows("--only", "devices")
        self.assertIn("no NVIDIA driver: libcuda.so.1", rows["driver"]["measured"])
        self.assertNotIn("devices", rows)


class Missing(WithPlantedPrograms):
    def test_missing_nvcc_is_reported_on_one_line(self):
        place = programs.Place(argparse.Namespace(simulate=False, on_cpu=False), self.folder, packed=False)
        with mock.patch.dict(os.environ, {"PATH": "", "CUDACXX": ""}), mock.patch("glob.glob", return_value=[]):
            row = programs.toolkit_row(place, None)
            self.assertEqual(row.verdict, "skipped")
            self.assertIn("nvcc was not found", row.measured)
            (self.folder / "bin" / "tutti").unlink()
            row = programs.toolkit_row(place, None)
            self.assertEqual(row.verdict, "FAIL")
            self.assertIn("install the CUDA toolkit", row.measured)

    def test_missing_torch_is_reported_on_one_line(self):
        path = self.folder / "bin" / "python_without_torch"
        write_program(path, "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
        rows = self.rows(GPU, "--only", "resnet50 mixed_bfloat16", "--python", path, expected_code=0)
        row = rows["resnet8 mixed_bfloat16 / torch"]
        self.assertEqual(row["verdict"], "skipped")
        self.assertIn("No module named 'torch'", row["measured"])

    def test_missing_library_error_lists_other_versions(self):
        folder = self.folder / "cuda"
        folder.mkdir()
        (folder / "libcublas.so.12").touch()
        self.assertEqual(programs.other_versions("libcublas.so.13", [str(folder)]), ["libcublas.so.12"])

    def test_library_folders_of_python_wheels_are_found(self):
        lib = self.folder / "site" / "nvidia" / "cu13" / "lib"
        lib.mkdir(parents=True)
        python = self.folder / "python"
        write_program(python, f'PYTHONPATH={self.folder}/site exec {sys.executable} "$@"')
        self.assertEqual(programs.wheel_folders(str(python)), [str(lib)])
        self.assertEqual(programs.wheel_folders("/nowhere/python"), [])


FAKE = r'''#!PYTHON
# Replaces every program: prints what the real program would print on a machine with a GPU.
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
def say(**event):
    print(json.dumps(event), flush=True)
def flag(key, default=""):
    return words[words.index(key) + 1] if key in words else default
def train(rate):
    if "--losses" in words:
        say(event="losses", losses=[2.3 - 0.01 * i for i in range(int(flag("--steps")))])
        return
    if int(flag("--batch-size")) > BATCH:
        sys.exit("train_resnet: RESOURCE_EXHAUSTED: gpu:0")
    say(event="ready", program=name, batch_size=int(flag("--batch-size")))
    for line in sys.stdin:
        say(event="round", steps=int(line), seconds=1.0, loss=1.0, images_per_second=rate)
if name == "tutti" and words[0] == "devices":
    gpu = {"type": "gpu", "name": "Fake GPU", "total_bytes": 80 * 10**9}
    say(devices=[{"type": "cpu", "model": "x", "cores": 2}, gpu], gpu={"available": True, "simulated": SIMULATED})
elif name == "tutti" and words[0] == "doctor":
    print("Verdict: everything needed is available.")
elif name == "tutti":
    say(total={"passed": 5, "failed": 0, "skipped": 1}, failures=[])
elif name == "device_check":
    spoiled = "--spoil" in words
    say(passed=not spoiled, agree=3, compared=3, detail="", failures=["x"] if spoiled else [], not_tried=[], without_kernel=[])
    sys.exit(1 if spoiled else 0)
elif name == "gpu_bench":
    say(bytes_per_second=RATE if words[0] == "update" else 1e12, variables=161, microseconds=15.0, seconds={"median": 1e-3},
        bytes=4.0, algbw=1.0, busbw=1.0, ranks=1)
elif name == "train_resnet":
    train(2000.0)
elif name == "test_gpu":
    if FAILING:
        print("[  FAILED  ] GpuLayers.Dense (3 ms)\n[==========] 7 tests from 2 test suites ran.\n[  FAILED  ] GpuLayers.Dense")
        sys.exit(1)
    print("[==========] 7 tests from 2 test suites ran. (9 ms total)\n[  PASSED  ] 7 tests.")
elif name == "compute-sanitizer":
    print("========= RACECHECK SUMMARY: 0 hazards displayed" if "racecheck" in words else "========= ERROR SUMMARY: ERRORS errors")
    sys.exit(86 if "ERRORS" != "0" and "racecheck" not in words else 0)
elif words[0] == "-c":
    print("2.9.0 True")
else:
    train(1600.0 if "eager" in words else 2500.0)
'''


class OnAMachineWithAGpu(unittest.TestCase):
    """Simulates a machine with a real GPU by replacing its programs (FAKE), so that all checks run."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())

    def tearDown(self):
        shutil.rmtree(self.folder)

    def run_all(self, rate=0.9e12, errors="0", batch=10**6, simulated=False, failing=False, only=()):
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        text = FAKE.replace("PYTHON", sys.executable, 1).replace("RATE", str(rate)).replace("ERRORS errors", errors + " errors")
        text = text.replace('"ERRORS"', f'"{errors}"').replace("BATCH", str(batch), 1).replace("SIMULATED", str(simulated)).replace("FAILING", str(failing))
        for name in ("tutti", "device_check", "train_resnet", "gpu_bench", "compute-sanitizer", "python", "test_gpu"):
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        flags = argparse.Namespace(simulate=False, on_cpu=False, quick=False, budget_seconds=100.0, logs=str(self.folder / "logs"),
                                   python=str(bin_folder / "python"), data_dir="", json="")
        place = programs.Place(flags, self.folder, packed=False)
        table = rows.Table(flags)
        with commands.Runner(flags) as runner, mock.patch("sys.stderr", io.StringIO()), \
                mock.patch.dict(os.environ, {"PATH": f"{bin_folder}:{os.environ['PATH']}"}):
            rows.run_steps(checks.steps() + speed.steps(), only, place, runner, table)
        return table, {row.name: row for row in table.rows}

    def test_every_row_has_a_verdict(self):
        table, found = self.run_all()
        self.assertEqual(table.exit_code(), 0, table.text())
        passing = [row.name for row in table.rows if row.kind == "correctness"]
        self.assertEqual({found[name].verdict for name in passing}, {"pass"}, table.text())
        for name, verdict in (("update sgd", "goal met"), ("empty step captured", "goal met"), ("empty step eager", "shown"),
                              ("resnet50 mixed_bfloat16", "shown"), ("resnet50 mixed_bfloat16 / torch eager", "below goal"),
                              ("resnet50 mixed_bfloat16 / torch compile", "below goal"), ("resnet50 float32 / torch eager", "below goal")):
            self.assertEqual(found[name].verdict, verdict, table.text())
        self.assertEqual(found["resnet50 tf32 / torch eager"].numbers["ratios"], [1.25] * 5)
        self.assertIn("0.80x", found["resnet50 tf32 / torch compile"].measured)

    def test_sanitizer_errors_fail_check_but_missed_goals_do_not(self):
        table, found = self.run_all(rate=0.5e12, errors="3", only=["copy", "update adam", "memcheck", "racecheck", "initcheck"])
        self.assertEqual(found["update adam"].verdict, "below goal")
        self.assertEqual((found["memcheck"].verdict, found["racecheck"].verdict), ("FAIL", "pass"))
        self.assertIn("3 errors", found["memcheck"].measured)
        self.assertEqual([row.name for row in table.rows if row.breaks()], ["memcheck", "initcheck"])

    def test_batch_that_does_not_fit_is_halved_for_all_programs(self):
        table, found = self.run_all(batch=64, only=["resnet50 mixed"])
        self.assertIn("batch 64", found["resnet50 mixed_bfloat16"].measured)
        self.assertEqual(found["resnet50 mixed_bfloat16 / torch eager"].numbers["ready"]["batch_size"], 64)

    def test_failing_test_program_is_named(self):
        table, found = self.run_all(failing=True, only=["gpu tests"])
        self.assertEqual((found["gpu tests"].verdict, table.exit_code()), ("FAIL", 1))
        self.assertEqual(found["gpu tests"].measured, "1 tests fail: GpuLayers.Dense")

    def test_simulated_gpu_is_not_accepted_as_proof(self):
        table, found = self.run_all(simulated=True, only=["devices"])
        self.assertEqual(found["devices"].verdict, "FAIL")
        self.assertEqual(table.exit_code(), 1)


class Refusals(unittest.TestCase):
    def refused(self, expected_code, part, *words):
        code, output, errors = run(*words)
        self.assertEqual(code, expected_code, output + errors)
        self.assertIn(part, output + errors)


class WholeFlow(Refusals):
    """Tests of --pack, which requires a build with CUDA."""

    def check_table(self, output, report):
        lines = output.splitlines()
        head = next(i for i, line in enumerate(lines) if line.startswith("check "))
        self.assertEqual(lines[head].split(), ["check", "result", "measured", "goal", "verdict", "s"])
        for row, line in zip(report["rows"], lines[head + 2:]):
            self.assertTrue(line.startswith(row["name"]), line)
            self.assertIn(row["verdict"], line)
        self.assertEqual(len(lines) - head - 2, len(report["rows"]) + 1)
        self.assertEqual(lines[-1].split(";")[0], report["verdict"].split(";")[0])

    def test_packed_programs_run_from_different_folder(self):
        """Packs the programs, then runs all checks from another folder with an empty environment."""
        with tempfile.TemporaryDirectory() as folder:
            pack, moved = pathlib.Path(folder) / "pack", pathlib.Path(folder) / "else" / "where"
            code, output, errors = run("--build", BUILD, "--pack", pack)
            self.assertEqual(code, 0, output + errors)
            self.assertIn("tar -xf pack.tar.gz", output)
            archive = pathlib.Path(folder) / "pack.tar.gz"
            self.assertLess(archive.stat().st_size, 60 * 2**20)
            shutil.rmtree(pack)
            with tarfile.open(archive) as tar:
                tar.extractall(moved.parent)
            (moved.parent / "pack").rename(moved)
            code, rows, report, output = run_json(GPU, program=moved / "benchmarks" / "gpu" / "gpu_check",
                                                  env={"PATH": "/usr/bin:/bin", "HOME": "/nowhere"})
            self.assertEqual(code, 0, output)
            self.check_flow(rows, report, output)

    def check_flow(self, rows, report, output):
        self.assertTrue(report["simulated"])
        self.assertIn("no GPU was used", report["verdict"])
        for name in ("devices", "doctor", "kernels", "gradients", "optimizers", "finds errors", "conform canonical x4",
                     "conform ring x4", "losses float32", "losses mixed_bfloat16", "losses float32 x4"):
            self.assertEqual(rows[name]["verdict"], "pass", rows[name])
        for name in ("copy", "update sgd", "update adam", "empty step eager", "empty step captured",
                     "all_reduce canonical x4", "resnet8 mixed_bfloat16"):
            self.assertEqual(rows[name]["verdict"], "shown", rows[name])
        self.assertEqual(rows["memcheck"]["verdict"], "skipped")
        self.assertEqual(rows["kernels"]["numbers"]["report"]["failed"], 0)
        self.assertGreater(rows["kernels"]["numbers"]["report"]["compared"], 1000)
        self.check_table("\n".join(line for line in output.splitlines()
                                   if not line.startswith(("pass  ", "shown  ", "skipped  ", "   "))), report)

    def test_pack_refuses_folder_with_other_files(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "mine").touch()
            self.refused(1, "contains other files", "--build", BUILD, "--pack", folder)


class WrongUsage(Refusals):
    def test_invalid_usage_exits_with_2(self):
        for words, text in ((["--only", "nothing"], "no row begins with 'nothing'"), (["--budget-seconds", "0"], "positive"),
                            (["--simulate", "--on-cpu"], "expected one of them"), (["--build", "a", "--prebuilt", "b"], "not allowed")):
            self.refused(2, text, *words)

    def test_pack_error_names_missing_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(1, "cmake --build", "--build", folder, "--pack", os.path.join(folder, "pack"))

    def test_folder_without_pack_is_rejected(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(1, "is not a pack", "--prebuilt", folder, GPU)
            pathlib.Path(folder, "gpu_check_pack.json").write_text("{}", encoding="utf-8")
            self.refused(1, "no program tutti", "--prebuilt", folder, GPU)


if __name__ == "__main__":
    counted_unittest.main(apart=["WithoutDriver", "WholeFlow"])
