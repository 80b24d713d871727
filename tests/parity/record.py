#!/usr/bin/env python3
# Records what TensorFlow and Keras compute, for the tests of this folder to compare with.
# SPDX-License-Identifier: Apache-2.0
"""Usage: record.py            makes a virtual environment with TensorFlow in .venv and writes records/
          record.py --check    whether records/ was made by these scripts; needs no TensorFlow
"""
import hashlib
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
REQUIREMENTS = ["tensorflow-cpu"]


def script_hash():
    digest = hashlib.sha256()
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def metadata_of(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length))["__metadata__"]


def check():
    stale = [path.name for path in sorted(RECORDS.glob("*.safetensors"))
             if metadata_of(path)["script_hash"] != script_hash()]
    count = len(list(RECORDS.glob("*.safetensors")))
    if stale or count == 0:
        print(f"the records were made by other scripts: {stale or 'there are none'}; run tests/parity/record.py")
        return 1
    print(f"{count} records fit the scripts")
    return 0


def record_all():
    sys.path.insert(0, str(HERE))
    import keras
    import tensorflow as tf

    import function_cases
    import initializer_cases
    import layer_cases
    import loss_cases
    import metric_cases
    import optimizer_cases
    import safetensors_file
    import schedule_cases
    import training_cases

    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * 4)
    metadata = {"tensorflow": tf.__version__, "keras": keras.__version__, "script_hash": script_hash()}
    RECORDS.mkdir(exist_ok=True)

    def write(name, tensors):
        path = RECORDS / f"{name}.safetensors"
        safetensors_file.write(path, tensors, metadata)
        cases = {key.split("/")[0] for key in tensors if "/" in key}
        print(f"{path.name}: {len(cases)} cases, {len(tensors)} tensors, {path.stat().st_size} bytes")

    keras.config.set_floatx("float64")
    write("layers", layer_cases.record(tf, keras))
    write("losses", loss_cases.record(tf, keras))
    write("functions", function_cases.record(tf, keras))
    write("initializers", initializer_cases.record(keras))
    write("metrics", metric_cases.record(tf, keras))
    write("schedules", schedule_cases.record(keras))
    write("optimizers", optimizer_cases.record(tf, keras))
    for dtype in ("float64", "float32"):
        keras.config.set_floatx(dtype)
        write(f"training_{dtype}", training_cases.record(tf, keras, dtype))
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}, scripts {script_hash()[:16]}")


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:] == ["--inside"]:
        record_all()
        return 0
    if sys.argv[1:]:
        sys.exit(__doc__)
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet"] + REQUIREMENTS, check=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    return subprocess.run([python, __file__, "--inside"], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
