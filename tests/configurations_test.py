#!/usr/bin/env python3
# Configures and builds the project with and without optional libraries and a network, and detects
# downloads.
# SPDX-License-Identifier: Apache-2.0
"""Usage: configurations_test.py SOURCE_FOLDER CXX_COMPILER [CLASS.test_NAME]"""
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))
import counted_unittest  # noqa: E402

SOURCE = os.path.abspath(sys.argv.pop(1))
COMPILER = sys.argv.pop(1)
OPTIONAL = {"TUTTI_MPI": "MPI", "TUTTI_CUDA": "CUDA", "TUTTI_GRPC": "gRPC", "TUTTI_ONEDNN": "oneDNN"}
DOWNLOADS = re.compile(r"FetchContent|ExternalProject|CPMAddPackage|file\s*\(\s*DOWNLOAD|\b(curl|wget)\b|git\s+clone|"
                       r"pip3?\s+install", re.IGNORECASE)


def without_network():
    """Returns the prefix that runs a command without a network, or [] if this machine does not permit that."""
    command = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare"):
        return []
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


def configure_in(folder, *options, prefix=()):
    """Configures the project; returns {library: (state, rest of its summary line)}."""
    result = subprocess.run(
        [*prefix, "cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, f"-DCMAKE_CXX_COMPILER={COMPILER}",
         "-DTUTTI_BUILD_TESTS=OFF", "-DTUTTI_BUILD_EXAMPLES=OFF", *options],
        text=True, capture_output=True, timeout=600, check=False)
    made = os.path.exists(os.path.join(folder, "build.ninja"))
    assert result.returncode == 0 and made, result.stdout + result.stderr
    rows = re.findall(r"^--   (\S+) +(off|not found|found|headers|[0-9][0-9.]*) +(.*)$", result.stdout, re.MULTILINE)
    return {name: (state, rest) for name, state, rest in rows}


def configure(*options, prefix=()):
    with tempfile.TemporaryDirectory() as folder:
        return configure_in(folder, *options, prefix=prefix)


def build_in(folder, targets, prefix=()):
    result = subprocess.run([*prefix, "ninja", "-C", folder, *targets], text=True, capture_output=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    return result.stdout


QUICK = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0")


class Configurations(unittest.TestCase):
    def test_configures_with_and_without_optional_libraries(self):
        usual = configure()
        for name in OPTIONAL.values():
            self.assertIn(name, usual)
        for off in ([], ["TUTTI_MPI"], ["TUTTI_CUDA"], list(OPTIONAL)):
            with self.subTest(off=off):
                rows = configure(*(f"-D{option}=OFF" for option in off)) if off else usual
                for option, name in OPTIONAL.items():
                    state, rest = rows[name]
                    self.assertEqual(state == "off", option in off, (name, state))
                    if option in off:  # the summary shows how to enable the library
                        self.assertIn(f"-D{option}=AUTO", rest)
                    else:
                        self.assertEqual(state, usual[name][0])

    def test_build_without_mpi_uses_no_mpi_symbols(self):
        """Checks that a build without MPI does not refer to MPI symbols, even if this machine has MPI."""
        with tempfile.TemporaryDirectory() as folder:
            configure_in(folder, "-DTUTTI_MPI=OFF", "-DTUTTI_CUDA=OFF", "-DTUTTI_GRPC=OFF", *QUICK)
            with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as file:
                objects = re.findall(r"-o (\S+/tutti_cross_device_ops\.dir/\S+)", file.read())
            self.assertTrue(objects)
            build_in(folder, objects)
            wanted = subprocess.run(["nm", "-C", "--undefined-only", *objects], cwd=folder, text=True, capture_output=True, check=True).stdout
            self.assertIn("tutti::", wanted)
            self.assertNotRegex(wanted, r"\bMPI_|\bompi_")

    def test_nothing_is_downloaded(self):
        files = subprocess.run(["git", "-C", SOURCE, "ls-files", "*CMakeLists.txt", "*.cmake", "*.cmake.in"], text=True,
                               capture_output=True, check=False).stdout.split()
        if not files:  # an archive, not a repository
            files = [os.path.relpath(os.path.join(folder, name), SOURCE) for folder, _, names in os.walk(SOURCE)
                     for name in names if name == "CMakeLists.txt" or name.endswith((".cmake", ".cmake.in"))]
        self.assertGreater(len(files), 20)
        for path in files:
            with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    self.assertIsNone(DOWNLOADS.search(line.split("#")[0]), f"{path}:{number}: {line}")
        with tempfile.TemporaryDirectory() as folder:
            configure_in(folder)
            with open(os.path.join(folder, "build.ninja"), encoding="utf-8") as file:
                commands = [line for line in file if line.lstrip().startswith("COMMAND =") or line.startswith("  command =")]
        self.assertGreater(len(commands), 20)
        for command in commands:
            self.assertIsNone(DOWNLOADS.search(command), command)


class Combinations(unittest.TestCase):
    def test_configures_with_and_without_cuda_mpi_and_nccl(self):
        """Configures all combinations on a machine with CUDA, MPI and NCCL. Without NCCL, the GPU module is not built."""
        with tempfile.TemporaryDirectory() as folder:
            for cuda, mpi, nccl in itertools.product((True, False), repeat=3):
                with self.subTest(cuda=cuda, mpi=mpi, nccl=nccl):
                    rows = configure_in(folder, f"-DTUTTI_CUDA={'AUTO' if cuda else 'OFF'}", f"-DTUTTI_MPI={'AUTO' if mpi else 'OFF'}",
                                        f"-DCMAKE_DISABLE_FIND_PACKAGE_NCCL2={'OFF' if nccl else 'ON'}")
                    self.assertRegex(rows["MPI"][0], r"^[0-9]" if mpi else "^off$")
                    self.assertRegex(rows["CUDA"][0], "^off$" if not cuda else r"^[0-9]" if nccl else "^not found$")
                    if cuda and not nccl:
                        self.assertIn("-DNCCL_ROOT", rows["CUDA"][1])
                    with open(os.path.join(folder, "build.ninja"), encoding="utf-8") as file:
                        text = file.read()
                    self.assertEqual("lib/libtutti_cuda.so" in text, cuda and nccl)
                    self.assertEqual("cross_device_ops/mpi/mpi_engine.cc" in text or "mpi_engine" in text, mpi)


class WithoutNetwork(unittest.TestCase):
    def test_builds_without_network_access(self):
        prefix = without_network()
        if not prefix:
            self.skipTest("unshare cannot disable the network on this machine")
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("oneDNN", configure_in(folder, *QUICK, prefix=prefix))
            build_in(folder, ["tutti_core"], prefix=prefix)
            self.assertTrue(os.path.exists(os.path.join(folder, "core", "libtutti_core.a")))


if __name__ == "__main__":
    counted_unittest.main(apart=["Combinations", "WithoutNetwork"])
