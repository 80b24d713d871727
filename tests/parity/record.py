#!/usr/bin/env python3
# Records what TensorFlow and Keras compute, so that the tests of this folder can compare results.
# SPDX-License-Identifier: Apache-2.0
"""Usage: record.py [RECORD ...]  installs TensorFlow in .venv/parity if necessary, and writes the given files of
                               records/ (default: all)
          record.py --check    checks that the current scripts wrote the records, and that the numbers are unchanged;
                               does not need TensorFlow
"""
import ast
import hashlib
import importlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
RECORDS = HERE / "records"
ENVIRONMENT = HERE.parent.parent / ".venv" / "parity"
REQUIREMENTS = ["tensorflow-cpu==2.21.0", "keras==3.15.1"]
# {file of records/: (script whose record(tf, keras) makes it, Keras's floatx)}
MADE_BY = {
    "fit": ("fit_cases", "float64"),
    "functions": ("function_cases", "float64"),
    "initializers": ("initializer_cases", "float64"),
    "layers": ("layer_cases", "float64"),
    "losses": ("loss_cases", "float64"),
    "metrics": ("metric_cases", "float64"),
    "networks": ("network_cases", "float64"),
    "optimizers": ("optimizer_cases", "float64"),
    "replicas": ("replica_cases", "float64"),
    "schedules": ("schedule_cases", "float64"),
    "tensors": ("tensor_cases", "float64"),
    "training_float32": ("training_cases", "float32"),
    "training_float64": ("training_cases", "float64"),
}


def scripts_of(module):
    """Returns {path: text} of a module, and of the modules of this folder that it imports."""
    found, wanted = {}, [module]
    while wanted:
        path = HERE / f"{wanted.pop()}.py"
        if not path.exists() or path in found:
            continue
        found[path] = path.read_bytes()
        for node in ast.walk(ast.parse(found[path])):
            if isinstance(node, ast.ImportFrom):
                wanted.append(node.module)
            elif isinstance(node, ast.Import):
                wanted += [name.name for name in node.names]
    return found


def script_hash(name):
    """Returns a hash of the scripts that make this record. Scripts of other records may change without affecting it."""
    module, floatx = MADE_BY[name]
    digest = hashlib.sha256(floatx.encode())
    for path, text in sorted(scripts_of(module).items()):
        digest.update(path.name.encode() + b"\0" + text)
    return digest.hexdigest()


def content_of(path):
    """Returns the metadata of a file, and a hash of everything else."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        metadata = header.pop("__metadata__")
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        digest.update(file.read())
    return metadata, digest.hexdigest()


def check():
    complaints = []
    found = {path.stem: path for path in sorted(RECORDS.glob("*.safetensors"))}
    for name in sorted(found.keys() | MADE_BY.keys()):
        if name not in found or name not in MADE_BY:
            complaints.append(f"{name}: {'no script writes this record' if name in found else 'the record is missing'}")
            continue
        metadata, numbers = content_of(found[name])
        if metadata["script_hash"] != script_hash(name):
            complaints.append(f"{name}: the scripts have changed since the record was written")
        if metadata.get("numbers_hash") != numbers:
            complaints.append(f"{name}: the numbers have changed since the record was written")
    if complaints:
        print("\n".join(complaints) + "\nrun tests/parity/record.py with the names of these records")
        return 1
    print(f"{len(found)} records match the scripts")
    return 0


def record(names):
    sys.path.insert(0, str(HERE))
    import keras
    import tensorflow as tf

    import safetensors_file

    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * 4)
    RECORDS.mkdir(exist_ok=True)
    for name in names:
        module, floatx = MADE_BY[name]
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(floatx)  # otherwise, all records would use the first floatx
        tensors = importlib.import_module(module).record(tf, keras)
        metadata = {"tensorflow": tf.__version__, "keras": keras.__version__, "script_hash": script_hash(name)}
        path = RECORDS / f"{name}.safetensors"
        safetensors_file.write(path, tensors, metadata)
        safetensors_file.write(path, tensors, {**metadata, "numbers_hash": content_of(path)[1]})
        cases = {key.split("/")[0] for key in tensors if "/" in key}
        print(f"{path.name}: {len(cases)} cases, {len(tensors)} tensors, {path.stat().st_size} bytes", flush=True)
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        return check()
    inside = arguments[:1] == ["--inside"]
    names = arguments[1:] if inside else arguments
    if not set(names) <= MADE_BY.keys():
        sys.exit(f"{__doc__}\nrecords: {', '.join(MADE_BY)}")
    if inside:
        record(names or MADE_BY)
        return 0
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet"] + REQUIREMENTS, check=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    return subprocess.run([python, __file__, "--inside"] + names, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
