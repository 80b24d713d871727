#!/usr/bin/env python3
# Configures the project with and without optional libraries, and looks for anything that would be downloaded.
# SPDX-License-Identifier: Apache-2.0
"""Usage: configurations_test.py SOURCE_FOLDER CXX_COMPILER [Configurations.test_NAME]"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
COMPILER = sys.argv.pop(1)
OPTIONAL = {"TUTTI_MPI": "MPI", "TUTTI_CUDA": "CUDA", "TUTTI_GRPC": "gRPC", "TUTTI_ONEDNN": "oneDNN"}
DOWNLOADS = re.compile(r"FetchContent|ExternalProject|CPMAddPackage|file\s*\(\s*DOWNLOAD|\b(curl|wget)\b|git\s+clone|"
                       r"pip3?\s+install", re.IGNORECASE)


def without_network():
    """What runs a command without any network, where this machine allows it."""
    command = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare"):
        return []
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


def configure(*options, prefix=()):
    """The lines that configuration ends with, by the name of the library."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [*prefix, "cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, f"-DCMAKE_CXX_COMPILER={COMPILER}",
             "-DTUTTI_BUILD_TESTS=OFF", "-DTUTTI_BUILD_EXAMPLES=OFF", *options],
            text=True, capture_output=True, timeout=600, check=False)
        made = os.path.exists(os.path.join(folder, "build.ninja"))
    assert result.returncode == 0 and made, result.stdout + result.stderr
    rows = re.findall(r"^--   (\S+) +(off|not found|found|headers|[0-9][0-9.]*) +(.*)$", result.stdout, re.MULTILINE)
    return {name: (state, rest) for name, state, rest in rows}


class Configurations(unittest.TestCase):
    def test_S4_08_S4_09_with_and_without_optional_libraries(self):
        usual = configure()
        for name in OPTIONAL.values():
            self.assertIn(name, usual)
        for off in ([], ["TUTTI_MPI"], ["TUTTI_CUDA"], list(OPTIONAL)):
            with self.subTest(off=off):
                rows = configure(*(f"-D{option}=OFF" for option in off)) if off else usual
                for option, name in OPTIONAL.items():
                    state, rest = rows[name]
                    self.assertEqual(state == "off", option in off, (name, state))
                    if option in off:  # the table says how to turn it on
                        self.assertIn(f"-D{option}=AUTO", rest)
                    else:
                        self.assertEqual(state, usual[name][0])

    def test_S4_10_nothing_is_downloaded(self):
        files = subprocess.run(["git", "-C", SOURCE, "ls-files", "*CMakeLists.txt", "*.cmake", "*.cmake.in"], text=True,
                               capture_output=True, check=False).stdout.split()
        if not files:  # no repository: an archive
            files = [os.path.relpath(os.path.join(folder, name), SOURCE) for folder, _, names in os.walk(SOURCE)
                     for name in names if name == "CMakeLists.txt" or name.endswith((".cmake", ".cmake.in"))]
        self.assertGreater(len(files), 20)
        for path in files:
            with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    self.assertIsNone(DOWNLOADS.search(line.split("#")[0]), f"{path}:{number}: {line}")
        # A machine that forbids this still has shown that no file asks for a download.
        prefix = without_network()
        print("configured", "without a network" if prefix else "with a network: unshare is not allowed here")
        self.assertIn("oneDNN", configure(prefix=prefix))


if __name__ == "__main__":
    unittest.main()
