#!/usr/bin/env python3
# Runs one training program under many strategies; losses and weights must be bit-identical.
# SPDX-License-Identifier: Apache-2.0
"""Usage: same_bits_test.py PROGRAM [--steps N] [--variants a,b,...] [--jobs N]

Every run of a variant must report the same losses_hex, weights_hash and slots_hash (docs/determinism.md). --jobs: number of concurrent runs.
"""
import concurrent.futures
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import differing, end_with, load, output_of, parse  # noqa: E402

VARIANTS = {
    "batch-256": ["--batch-size", "256"],
    "batch-130": ["--batch-size", "130"],
    "ragged": ["--batch-size", "130", "--train-examples", "400"],
    "regularized": ["--batch-size", "256", "--regularized"],
    "regularized-ragged": ["--batch-size", "130", "--train-examples", "400", "--regularized"],
    "mixed_bfloat16": ["--batch-size", "256", "--regularized", "--dtype-policy", "mixed_bfloat16"],
    "mixed_float16": ["--batch-size", "130", "--train-examples", "400", "--dtype-policy", "mixed_float16"],
}

FOUR = ["--devices", "cpu:0-3"]
RUNS = [
    ("mirrored", ["--strategy", "mirrored"] + FOUR, {}),
    ("mirrored again", ["--strategy", "mirrored"] + FOUR, {}),
    ("central_storage", ["--strategy", "central_storage"] + FOUR, {}),
    ("fully_sharded", ["--strategy", "fully_sharded", "--min-shard-bytes", "0"] + FOUR, {}),
    ("fully_sharded, stage 2",
     ["--strategy", "fully_sharded", "--stage", "2", "--min-shard-bytes", "0"] + FOUR, {}),
    ("fully_sharded, stage 1, 4 replicas on 2 devices",
     ["--strategy", "fully_sharded", "--stage", "1", "--devices", "cpu:0-1", "--replicas", "4"], {}),
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
# On a mesh, all positions have equally many rows, and dropout and statistics are those of the global batch.
WHOLE_BATCHES = [
    ("mesh", ["--strategy", "mesh"] + FOUR, {}),
    ("mesh, 4 blocks on 2 devices", ["--strategy", "mesh", "--devices", "cpu:0-1", "--blocks", "data=4"], {}),
]
ONE_REPLICA = [
    ("one_device", ["--strategy", "one_device", "--devices", "cpu:0"], {}),
    ("mirrored, 1 replica", ["--strategy", "mirrored", "--devices", "cpu:0"], {}),
    ("parameter_server, 1 replica", ["--strategy", "parameter_server", "--devices", "cpu:0"], {}),
    ("fully_sharded, 1 replica", ["--strategy", "fully_sharded", "--devices", "cpu:0"], {}),
    ("central_storage, 1 replica", ["--strategy", "central_storage", "--devices", "cpu:0"], {}),
]


def run(program, flags, environment, folder):
    """Runs the program once and returns its metrics."""
    handle, metrics = tempfile.mkstemp(suffix=".json", dir=folder)
    os.close(handle)
    # The many epochs let --steps alone end the run, because 400 examples have only 4 batches per
    # epoch. The evaluation after each epoch does not affect the compared values.
    command = [program, "--seed", "1", "--epochs", "1000", "--test-examples", "500", "--metrics-json", metrics] + flags
    output_of(*command, timeout=600, environment=environment)
    return load(metrics)


def compare(variant, name, reference, got):
    found = differing(reference, got)
    print(f"  {'DIFFERENT' if found else 'same':9} {got['weights_hash']}  {name}", flush=True)
    if not found:
        return 0
    for step, (a, b) in enumerate(zip(reference["losses_hex"], got["losses_hex"])):
        if a != b:
            print(f"    {variant}, {name}: first different loss at step {step}: {a} against {b}")
            break
    print(f"    {variant}, {name}: different: {', '.join(found)}")
    return 1


def run_resumed(program, variant, flags, steps, folder):
    checkpoints = ["--checkpoint-dir", os.path.join(folder, "checkpoints-" + variant)]
    run(program, flags + FOUR + checkpoints + ["--steps", str(steps // 2)], {}, folder)
    return run(program, flags + FOUR + checkpoints + ["--steps", str(steps), "--resume"], {}, folder)


def start_variant(pool, arguments, variant, folder):
    """Starts all runs of a variant; returns two lists of (name, future): runs with four replicas, and runs with one."""
    flags = VARIANTS[variant]
    steps = ["--steps", str(arguments.steps)]

    def start(runs):
        return [(name, pool.submit(run, arguments.program, flags + steps + more, environment, folder))
                for name, more, environment in runs]

    four = start(RUNS + (WHOLE_BATCHES if variant == "batch-256" else []))
    four.append((f"stopped at step {arguments.steps // 2} and resumed",
                 pool.submit(run_resumed, arguments.program, variant, flags, arguments.steps, folder)))
    return four, start(ONE_REPLICA)


def check_variant(variant, steps, lists_of_runs):
    """Returns how many runs differ from the first run of their list."""
    print(f"{variant}, {steps} steps", flush=True)
    failures = 0
    for runs in lists_of_runs:
        reference = runs[0][1].result()
        if reference["steps"] != steps or len(reference["losses_hex"]) != steps:
            sys.exit(f"{runs[0][0]}: expected {steps} steps, got {reference['steps']}")
        failures += sum(compare(variant, name, reference, future.result()) for name, future in runs)
    return failures


def main():
    arguments = parse(__doc__, "program", steps=40, variants=",".join(VARIANTS), jobs=1)
    failures = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            started = [(variant, start_variant(pool, arguments, variant, folder))
                       for variant in arguments.variants.split(",")]
            for variant, lists_of_runs in started:
                failures += check_variant(variant, arguments.steps, lists_of_runs)
        finally:
            pool.shutdown(cancel_futures=True)  # cancels the remaining runs after a failure
    print("all runs are bit-identical" if failures == 0 else f"{failures} runs differ")
    return 1 if failures else 0


if __name__ == "__main__":
    end_with(main)
