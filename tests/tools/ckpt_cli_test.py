#!/usr/bin/env python3
# Trains an example, and inspects its checkpoints with `tutti ckpt`.
# SPDX-License-Identifier: Apache-2.0
"""Usage: ckpt_cli_test.py PROGRAM EXAMPLE"""
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

from program_case import ProgramCase

PROGRAM, EXAMPLE = (os.path.abspath(path) for path in sys.argv[1:3])
del sys.argv[1:3]


def ckpt(*words):
    result = subprocess.run([PROGRAM, "ckpt", *words], text=True, capture_output=True, timeout=600)
    return result.returncode, result.stdout, result.stderr


def train(folder, steps, *flags):
    words = [EXAMPLE, "--checkpoint-dir", folder, "--steps", str(steps), "--batch-size", "32", *flags]
    return subprocess.run(words, text=True, capture_output=True, timeout=300)


def flip_a_bit(path, place):
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


class Checkpoints(ProgramCase):
    run_program = staticmethod(ckpt)

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = os.path.join(cls.holder.name, "run")
        for steps, flags in ((2, ()), (4, ("--resume",))):
            result = train(cls.folder, steps, *flags)
            assert "weights" in result.stdout, result.stdout + result.stderr

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def test_lists_and_verifies_versions(self):
        for command in ("list", "verify"):
            self.assertIn("2 whole, 0 damaged, 0 unfinished", self.output(command, self.folder))
            report = json.loads(self.output(command, self.folder, "--json"))
            self.assertEqual([row["step"] for row in report["versions"]], [2, 4])
            self.assertEqual([row["sequence"] for row in report["versions"]], [1, 2])
            self.assertEqual((report["whole"], report["damaged"]), (2, 0))
        version = os.path.join(self.folder, "step_4")
        self.output("verify", version)
        self.output("verify", glob.glob(version + "/*.safetensors")[0])

    def test_shows_contents_of_version(self):
        contents = json.loads(self.output("show", self.folder, "--json"))
        self.assertEqual((contents["step"], contents["sequence"]), (4, 2))
        self.assertIn("strategy", contents["about"])
        self.assertIn("input", contents["states"])
        file = contents["files"][0]
        path = os.path.join(self.folder, "step_4", file["name"])
        self.assertEqual(file["bytes"], os.path.getsize(path))
        # The file is plain safetensors: its header lists the tensors in the index.
        with open(path, "rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        names = {tensor["name"] for tensor in contents["tensors"]}
        self.assertEqual(names, set(header) - {"__metadata__"})
        self.assertIn("step      2\n", ckpt("show", self.folder, "--step", "2")[1])

    def test_damage_is_detected_and_training_resumes_from_previous_version(self):
        with tempfile.TemporaryDirectory() as holder:
            folder = os.path.join(holder, "run")
            subprocess.run(["cp", "-r", self.folder, folder], check=True)
            file = glob.glob(folder + "/step_4/*.safetensors")[0]
            flip_a_bit(file, -100)
            self.output("list", folder)  # `list` checks only sizes, which did not change
            text = self.output("verify", folder, expected_code=1)
            self.assertIn("1 whole, 1 damaged", text)
            self.assertIn(file + ": the file is damaged", text)
            flip_a_bit(folder + "/step_4/model.safetensors.index.json", 40)
            self.output("list", folder, expected_code=1)
            result = train(folder, 4, "--resume")
            self.assertIn("after step 2", result.stdout, result.stderr)
            self.assertIn("; restoring", result.stderr)
            self.assertIn("2 whole, 0 damaged", self.output("verify", folder))

    def test_damaged_version_is_listed_with_intact_versions(self):
        with tempfile.TemporaryDirectory() as holder:
            folder = os.path.join(holder, "run")
            subprocess.run(["cp", "-r", self.folder, folder], check=True)
            os.rename(folder + "/step_2", folder + "/step_3")
            os.mkdir(folder + "/step_9")
            with open(folder + "/step_9/manifest.json", "w") as file:
                file.write("{}")
            for path in (folder + "/step_9", folder):
                text = self.output("verify", path, expected_code=1)
                self.assertIn("earlier format with manifest.json", text)
            self.assertIn("1 whole, 2 damaged", text)
            self.assertIn("expected step 3, as in its name, got 2", text)

    def test_sharded_versions_of_several_workers_are_supported(self):
        with tempfile.TemporaryDirectory() as holder:
            folder = os.path.join(holder, "run")
            words = ["--checkpoint-dir", folder, "--batch-size", "32"]
            sharded = ["--strategy", "fully_sharded", "--min-shard-bytes", "0", "--devices", "cpu:0"]
            result = subprocess.run([PROGRAM, "run", "-n", "2", "--", EXAMPLE, *words, *sharded,
                                     "--steps", "2"], text=True, capture_output=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            files = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
            parts = files[1:]  # the first file contains the unsplit tensors
            self.assertEqual(sorted(os.listdir(folder + "/step_2")), [*files, "model.safetensors.index.json", "state.json"])
            for command in ("list", "verify"):
                self.assertIn("1 whole, 0 damaged", self.output(command, folder))
            contents = json.loads(ckpt("show", folder, "--json")[1])
            self.assertEqual([file["name"] for file in contents["files"]], [*files, "state.json"])
            self.assertTrue(any(tensor["files"] == parts for tensor in contents["tensors"]))
            for part in files:
                self.assertIn(f"file      {part}, ", ckpt("show", folder)[1])
                self.output("verify", f"{folder}/step_2/{part}")
            resumed = train(folder, 4, "--resume")  # in one process, with the default strategy
            self.assertIn("after step 2", resumed.stdout, resumed.stderr)
            flip_a_bit(f"{folder}/step_2/{parts[1]}", -1)
            text = self.output("verify", folder + "/step_2", expected_code=1)
            self.assertIn(parts[1] + ": the file is damaged", text)
            os.remove(f"{folder}/step_2/{parts[1]}")
            self.assertIn(parts[1], self.output("list", folder, expected_code=1))

    def test_invalid_usage_is_rejected(self):
        for words, code, expected in (((), 2, "list"), (("list", "/nowhere"), 1, "/nowhere"),
                                      (("show", self.folder, "--step", "3"), 1, "expected step 3 in "),
                                      (("show", self.folder, "--step", "3"), 1, "got steps [2, 4]"),
                                      (("show", os.path.dirname(EXAMPLE)), 1, "expected an undamaged checkpoint in "),
                                      (("show", os.path.dirname(EXAMPLE)), 1, "got no checkpoint"),
                                      (("list", "--what"), 2, "--what")):
            self.assertIn(expected, self.errors(code, *words))


if __name__ == "__main__":
    unittest.main()
