#!/usr/bin/env python3
# Runs one training program under many strategies and compares the bits of losses and weights.
# SPDX-License-Identifier: Apache-2.0
"""Usage: same_bits_test.py PROGRAM [--steps N] [--variants a,b,...]

Every run of a variant must report the same losses_hex, weights_hash and slots_hash (docs/determinism.md).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

VARIANTS = {
    "batch-256": ["--batch-size", "256"],
    "batch-130": ["--batch-size", "130"],
    "ragged": ["--batch-size", "130", "--train-examples", "1000"],
    "regularized": ["--batch-size", "256", "--regularized"],
    "regularized-ragged": ["--batch-size", "130", "--train-examples", "1000", "--regularized"],
    "mixed_bfloat16": ["--batch-size", "256", "--regularized", "--dtype-policy", "mixed_bfloat16"],
    "mixed_float16": ["--batch-size", "130", "--train-examples", "1000", "--dtype-policy", "mixed_float16"],
}

FOUR = ["--devices", "cpu:0-3"]
RUNS = [
    ("mirrored", ["--strategy", "mirrored"] + FOUR, {}),
    ("mirrored again", ["--strategy", "mirrored"] + FOUR, {}),
    ("central_storage", ["--strategy", "central_storage"] + FOUR, {}),
    ("hierarchical_copy", ["--strategy", "mirrored", "--cross-device-ops", "hierarchical_copy"] + FOUR, {}),
    ("reduction_to_one_device",
     ["--strategy", "mirrored", "--cross-device-ops", "reduction_to_one_device"] + FOUR, {}),
    ("central_storage, hierarchical_copy",
     ["--strategy", "central_storage", "--cross-device-ops", "hierarchical_copy"] + FOUR, {}),
    ("parameter_server, 2 servers",
     ["--strategy", "parameter_server", "--parameter-servers", "2"] + FOUR, {}),
    ("4 replicas on 2 devices", ["--devices", "cpu:0-1", "--replicas", "4"], {}),
    ("4 replicas on 1 device", ["--devices", "cpu:0", "--replicas", "4"], {}),
    ("OMP_NUM_THREADS=1", FOUR, {"OMP_NUM_THREADS": "1"}),
    ("OMP_NUM_THREADS=2", FOUR, {"OMP_NUM_THREADS": "2"}),
    ("OMP_NUM_THREADS=3", FOUR, {"OMP_NUM_THREADS": "3"}),
]
ONE_REPLICA = [
    ("one_device", ["--strategy", "one_device", "--devices", "cpu:0"], {}),
    ("mirrored, 1 replica", ["--strategy", "mirrored", "--devices", "cpu:0"], {}),
    ("parameter_server, 1 replica", ["--strategy", "parameter_server", "--devices", "cpu:0"], {}),
    ("central_storage, 1 replica", ["--strategy", "central_storage", "--devices", "cpu:0"], {}),
]
COMPARED = ("losses_hex", "weights_hash", "slots_hash")


def run(program, flags, environment, folder):
    metrics = os.path.join(folder, "metrics.json")
    if os.path.exists(metrics):
        os.remove(metrics)
    # --steps alone ends a run: 1000 examples have only 8 batches an epoch.
    command = [program, "--seed", "1", "--epochs", "1000", "--metrics-json", metrics] + flags
    result = subprocess.run(command, env={**os.environ, **environment}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    if result.returncode != 0:
        sys.exit(f"FAILED ({result.returncode}): {' '.join(command)}\n{result.stdout}")
    with open(metrics, encoding="utf-8") as file:
        return json.load(file)


def compare(variant, name, reference, got):
    differing = [key for key in COMPARED if reference[key] != got[key]]
    print(f"  {'same' if not differing else 'DIFFERENT':9} {got['weights_hash']}  {name}", flush=True)
    if not differing:
        return 0
    for step, (a, b) in enumerate(zip(reference["losses_hex"], got["losses_hex"])):
        if a != b:
            print(f"    {variant}, {name}: first different loss at step {step}: {a} against {b}")
            break
    print(f"    {variant}, {name}: different: {', '.join(differing)}")
    return 1


def check_resume(program, variant, flags, steps, folder, reference):
    checkpoints = ["--checkpoint-dir", os.path.join(folder, "checkpoints-" + variant)]
    run(program, flags + FOUR + checkpoints + ["--steps", str(steps // 2)], {}, folder)
    resumed = run(program, flags + FOUR + checkpoints + ["--steps", str(steps), "--resume"], {}, folder)
    return compare(variant, f"stopped at step {steps // 2} and resumed", reference, resumed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for variant in arguments.variants.split(","):
            flags = VARIANTS[variant]
            steps = ["--steps", str(arguments.steps)]
            print(f"{variant}, {arguments.steps} steps", flush=True)
            for runs in (RUNS, ONE_REPLICA):
                reference = None
                for name, more, environment in runs:
                    got = run(arguments.program, flags + steps + more, environment, folder)
                    if reference is None:
                        reference = got
                        if got["steps"] != arguments.steps or len(got["losses_hex"]) != arguments.steps:
                            sys.exit(f"{name}: expected {arguments.steps} steps, got {got['steps']}")
                    failures += compare(variant, name, reference, got)
                if runs is RUNS:
                    failures += check_resume(arguments.program, variant, flags, arguments.steps, folder,
                                             reference)
    print("all the same" if failures == 0 else f"{failures} runs differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
