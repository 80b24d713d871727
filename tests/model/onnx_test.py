#!/usr/bin/env python3
# Runs files written by export_onnx() with ONNX Runtime, and compares the results with tutti's.
# SPDX-License-Identifier: Apache-2.0
"""Usage: onnx_test.py --install                makes a virtual environment with onnxruntime in .venv/onnx
       onnx_test.py --install-if-possible    same as --install, but succeeds with a message if pip fails
       onnx_test.py ONNX_NETWORKS            tests the files that ONNX_NETWORKS, the program of onnx_networks.cc, writes"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import package_environment  # noqa: E402

ENVIRONMENT = package_environment.PackageEnvironment("onnx", ["onnxruntime", "numpy"])


def read_safetensors(path):
    """Returns {name: array}; supports only float32."""
    import numpy

    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    arrays = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        flat = numpy.frombuffer(data[8 + length + begin : 8 + length + end], numpy.float32)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


class OnnxExport(unittest.TestCase):
    def test_networks_match_onnx_runtime(self):
        import numpy
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, folder], check=True)
            for name, input_name in [("mlp", "input"), ("cnn", "input"), ("residual", "picture")]:
                with self.subTest(name):
                    session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
                    self.assertEqual([each.name for each in session.get_inputs()], [input_name])
                    arrays = read_safetensors(f"{folder}/{name}.safetensors")
                    (logits,) = session.run(None, {input_name: arrays["input"]})
                    self.assertEqual(logits.shape, arrays["logits"].shape)
                    self.assertGreater(numpy.ptp(logits), 0.1)
                    farthest = numpy.max(numpy.abs(logits - arrays["logits"]))
                    print(f"{name}: largest difference {farthest:.2e}")
                    self.assertLess(farthest, 1e-5)
                    # The exported batch size is variable, so one row works, too.
                    (row,) = session.run(None, {input_name: arrays["input"][:1]})
                    self.assertLess(numpy.max(numpy.abs(row - arrays["logits"][:1])), 1e-5)


if __name__ == "__main__":
    ENVIRONMENT.main(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
