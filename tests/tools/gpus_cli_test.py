#!/usr/bin/env python3
# Runs `tutti devices` and `tutti doctor` with simulated GPUs, without a driver, and with a stub driver.
# SPDX-License-Identifier: Apache-2.0
"""Usage: gpus_cli_test.py PROGRAM SIMULATED_MODULE FOLDER_OF_STUBS REAL_MODULE HIDING_LIBRARY [TEST...]

Only StubDriver, MissingLibraries and RealGpus need the real module; HIDING_LIBRARY is built from
tests/support/hidden_libraries.cc.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from program_case import ProgramCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import counted_unittest  # noqa: E402

PROGRAM, MODULE, STUBS, REAL_MODULE, HIDING = (os.path.abspath(path) for path in sys.argv[1:6])
del sys.argv[1:6]


def run(*words, program=PROGRAM, **environment):
    """Returns exit code, standard output and standard error of a run without the caller's TUTTI_ and CUDA_ variables
    (except TUTTI_DATA_DIR), but with the variables in `environment`."""
    own = {name: value for name, value in os.environ.items()
           if not name.startswith(("TUTTI_", "CUDA_")) or name == "TUTTI_DATA_DIR"}
    result = subprocess.run([program, *words], text=True, capture_output=True, timeout=600, env={**own, **environment})
    return result.returncode, result.stdout, result.stderr


def simulated(*words, **environment):
    return run(*words, **{"TUTTI_CUDA_MODULE": MODULE, **environment})


class SimulatedGpus(ProgramCase):
    run_program = staticmethod(simulated)

    def report(self, *words, **environment):
        code, text, errors = simulated("devices", "--json", *words, **environment)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(text)

    def gpus(self, *words, **environment):
        return [device for device in self.report(*words, **environment)["devices"] if device["type"] == "gpu"]

    def test_json_contains_all_fields(self):
        report = self.report(TUTTI_SIMULATED_GPUS="2:256")
        self.assertEqual(report["default_devices"], "gpu:0,gpu:1")
        self.assertTrue(report["gpu"]["available"])
        self.assertTrue(report["gpu"]["simulated"])
        self.assertRegex(report["gpu"]["description"], r"^CUDA 1\d\.\d, driver ")
        self.assertEqual(report["gpu"]["peer_access"], [[True, True], [True, True]])
        gpu = report["devices"][2]
        self.assertEqual((gpu["device"], gpu["ordinal"], gpu["physical"]), ("gpu:1", 1, 1))
        self.assertEqual((gpu["name"], gpu["compute_capability"]), ("Simulated GPU", "9.0"))
        self.assertEqual((gpu["pci_bus_id"], gpu["memory_clock_ghz"]), ("0000:03:00.0", 1.1))
        self.assertEqual((gpu["total_bytes"], gpu["free_bytes"]), (256 << 20, 256 << 20))
        self.assertEqual(gpu["memory_limit_bytes"], 256 << 20)

    def test_visible_devices_mask_renumbers_gpus(self):
        def physical(mask):
            return [(gpu["device"], gpu["physical"], gpu["pci_bus_id"]) for gpu in self.gpus(
                CUDA_VISIBLE_DEVICES=mask, TUTTI_SIMULATED_GPUS="2:64")]
        first, second = "0000:02:00.0", "0000:03:00.0"
        self.assertEqual(physical("1"), [("gpu:0", 1, second)])
        self.assertEqual(physical("1,0"), [("gpu:0", 1, second), ("gpu:1", 0, first)])
        self.assertEqual(physical("0,5,1"), [("gpu:0", 0, first)])
        for hidden in ("", "-1"):
            self.assertEqual(physical(hidden), [])
            text = self.output("devices", CUDA_VISIBLE_DEVICES=hidden)
            self.assertIn(f"gpu   none: CUDA_VISIBLE_DEVICES='{hidden}' shows no GPU", text)
            self.assertIn("A strategy without named devices uses cpu:0.", text)

    def test_text_lists_properties_peers_and_mapping(self):
        text = self.output("devices", TUTTI_SIMULATED_GPU_FAULTS="peers:none", CUDA_VISIBLE_DEVICES="1,0")
        self.assertRegex(text, r"Found device 0 with properties: name: Simulated GPU, compute capability: 9\.0, "
                               r"memory clock: 1\.100 GHz, PCI bus id: 0000:03:00\.0, total memory: 0\.50 GiB, "
                               r"free memory: 0\.50 GiB\n")
        self.assertIn("      DMA: 0 1\n      0:   Y N\n      1:   N Y\n", text)
        self.assertIn("Created gpu:0 -> (device: 0, GPU 1 of this machine, name: Simulated GPU, ", text)

    def test_one_gpu_becomes_several_devices(self):
        gpus = self.gpus("--virtual-gpus", "3:32", TUTTI_SIMULATED_GPUS="1:128")
        self.assertEqual([gpu["device"] for gpu in gpus], ["gpu:0", "gpu:1", "gpu:2"])
        self.assertEqual([gpu["part"] for gpu in gpus], [0, 1, 2])
        self.assertEqual({gpu["memory_limit_bytes"] for gpu in gpus}, {32 << 20})
        self.assertEqual(len(self.gpus(TUTTI_VIRTUAL_GPUS="2", TUTTI_SIMULATED_GPUS="2:64")), 4)
        for flag, reason in (("0", "expected 1 to 64 virtual GPUs per GPU"), ("x", "expected a number"), ("4:64", "at most 128 MiB")):
            self.assertIn(reason, self.errors(1, "devices", "--virtual-gpus", flag, TUTTI_SIMULATED_GPUS="1:128"))

    def test_doctor_reports_gpus_module_and_build(self):
        code, text, _ = simulated("doctor", "--json")
        found = {entry["subject"]: entry for entry in json.loads(text)["machine"]}
        self.assertEqual(found["GPU"]["found"], "gpu:0 Simulated GPU, gpu:1 Simulated GPU")
        self.assertIn(MODULE + " (simulated GPUs): CUDA ", found["CUDA module"]["found"])
        self.assertRegex(found["CUDA module's build"]["found"], r"^\d+\.\d+\.\d+-[0-9a-f]{12}$")
        for library in ("libcudart.so", "libcublasLt.so", "libcudnn.so", "libnccl.so"):
            self.assertEqual(sum(subject.startswith(library) for subject in found), 1, library)


class WithoutGpus(ProgramCase):
    run_program = staticmethod(simulated)

    def test_mode_off_hides_gpus(self):
        self.assertIn("gpu   none: TUTTI_CUDA=off hides the GPUs", self.output("devices", TUTTI_CUDA="off"))

    def test_mode_require_reports_missing_gpu_as_error(self):
        errors = self.errors(1, "devices", TUTTI_CUDA="require", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(errors, "tutti: TUTTI_CUDA=require, but there is no GPU: CUDA_VISIBLE_DEVICES='' shows no GPU; unset it\n")
        text = self.output("doctor", expected_code=1, TUTTI_CUDA="require", CUDA_VISIBLE_DEVICES="")
        self.assertRegex(text, r"bad +GPU +none: CUDA_VISIBLE_DEVICES='' shows no GPU\n +-> unset it")

    def test_outdated_driver_is_reported(self):
        text = self.output("devices", TUTTI_SIMULATED_CUDA_DRIVER="11080")
        self.assertRegex(text, r"gpu   none: the NVIDIA driver is too old: it supports CUDA 11\.8, expected 1\d\.\d or later; "
                               r"install a newer driver\nxla   [^\n]+\nA strategy without named devices uses cpu:0\.")

    def test_invalid_mode_is_rejected(self):
        code, _, errors = run("devices", TUTTI_CUDA="on")
        self.assertEqual((code, errors), (1, "tutti: TUTTI_CUDA: expected off, auto or require, got 'on'\n"))

    def test_missing_module_is_reported_on_one_line(self):
        text = self.output("devices", TUTTI_CUDA_MODULE="/nowhere/m.so")
        self.assertRegex(text, r"gpu   none: TUTTI_CUDA_MODULE cannot be opened: /nowhere/m\.so: [^\n]+\nxla   [^\n]+\nA strategy")


class WithRealModule(ProgramCase):
    run_program = staticmethod(run)


class StubDriver(WithRealModule):
    """Uses a libcuda.so.1 whose calls all fail, to test everything up to the error that CUDA reports."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        (self.path / "libcuda.so.1").symlink_to(pathlib.Path(STUBS) / "libcuda.so")

    def devices(self, program=PROGRAM):
        libraries = ":".join([self.folder.name, os.environ.get("LD_LIBRARY_PATH", "")])
        text = self.output("devices", program=program, LD_LIBRARY_PATH=libraries)
        return re.search(r"^gpu   none: (.*)$", text, re.MULTILINE).group(1)

    def test_module_of_this_build_is_found_and_reports_cuda_error(self):
        self.assertRegex(self.devices(), r"^CUDA cannot start: cudaErrorStubLibrary: ")

    def test_missing_module_error_lists_searched_paths(self):
        program = self.path / "bin" / "tutti"
        program.parent.mkdir()
        shutil.copy(PROGRAM, program)
        reason = self.devices(program)
        self.assertIn(f"the CUDA module was not found (looked for {self.path}/bin/libtutti_cuda.so, "
                      f"{self.path}/lib/libtutti_cuda.so", reason)
        (self.path / "lib").mkdir()
        (self.path / "lib" / "libtutti_cuda.so").write_text("no library")
        self.assertRegex(self.devices(program), "^the CUDA module cannot be opened: .*(invalid ELF header|file too short)")
        shutil.copy(REAL_MODULE, self.path / "lib" / "libtutti_cuda.so")
        self.assertRegex(self.devices(program), r"^CUDA cannot start: cudaErrorStubLibrary: ")


class MissingLibraries(WithRealModule):
    """Checks that programs run on the CPU if libraries of the GPU module are missing, and that each of these is listed."""

    def test_programs_run_on_cpu_and_missing_libraries_are_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "libcuda.so.1").symlink_to(pathlib.Path(STUBS) / "libcuda.so")
            environment = {"LD_LIBRARY_PATH": ":".join([folder, os.environ.get("LD_LIBRARY_PATH", "")]), "LD_PRELOAD": HIDING,
                           "TUTTI_HIDDEN_LIBRARIES": "libtutti_cuda.so:libcublasLt:libcudnn"}
            text = self.output("devices", **environment)
            self.assertRegex(text, r"gpu   none: CUDA libraries missing: libcublasLt\.so\.\d+, libcudnn\.so\.9; install CUDA, cuDNN")
            text = self.output("doctor", **environment)
            for library, found in (("libcublasLt", False), ("libcudnn", False), ("libcudart", True)):
                self.assertRegex(text, rf"(?m)^  (ok|warning) +{library}\.so\.\d+ +{'/' if found else 'not found$'}")
            trained = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "examples", "linear_regression")
            self.assertRegex(self.output(program=trained, **environment), r"line +y = (2\.99|3\.0)\d+ x \+ (1\.99|2\.0)\d+")


class RealGpus(WithRealModule):
    def test_fields_match_nvidia_smi(self):
        if not shutil.which("nvidia-smi"):
            self.skipTest("requires a GPU and nvidia-smi")
        fields = "name,compute_cap,pci.bus_id,memory.total,clocks.max.memory"
        listed = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], text=True, capture_output=True)
        if listed.returncode != 0:
            self.skipTest("requires a GPU; nvidia-smi lists none")
        expected = {row[2].lower()[-12:]: row for row in (line.split(", ") for line in listed.stdout.splitlines())}
        text = self.output("devices", "--json", TUTTI_CUDA="require")
        gpus = [device for device in json.loads(text)["devices"] if device["type"] == "gpu"]
        self.assertEqual({gpu["pci_bus_id"].lower() for gpu in gpus}, set(expected))
        for gpu in gpus:
            name, capability, _, mib, mhz = expected[gpu["pci_bus_id"].lower()]
            self.assertEqual((gpu["name"], gpu["compute_capability"]), (name, capability))
            self.assertAlmostEqual(gpu["total_bytes"] / 2**20, float(mib), delta=0.05 * float(mib))  # CUDA reserves some
            self.assertLessEqual(gpu["free_bytes"], gpu["total_bytes"])
            self.assertAlmostEqual(1000 * gpu["memory_clock_ghz"], float(mhz), delta=0.02 * float(mhz))


if __name__ == "__main__":
    counted_unittest.main(apart=["StubDriver", "MissingLibraries", "RealGpus"])
