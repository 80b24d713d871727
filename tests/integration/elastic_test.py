#!/usr/bin/env python3
# A run that is stopped and resumed with other numbers of processes: the bits of an undisturbed one.
# SPDX-License-Identifier: Apache-2.0
"""Usage: elastic_test.py PROGRAM [--steps N]

The number of replicas stays 4. Three times N steps with 4, 2 and 3 processes, the last two with shards of variables, then with
one; then a run of which one worker gets SIGTERM: all end with 75 after the same step, and what follows has the same bits again.
"""
import argparse
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import multi_worker_test as workers_of  # noqa: E402

REPLICAS = 4
STOPPED_ON_REQUEST = 75
PARTS = [(4, "multi_worker_mirrored"), (2, "fully_sharded"), (3, "fully_sharded")]


def stop_one_worker(program, flags, folder):
    """Three workers, one of which is asked to stop in the middle; the exit codes and what they wrote."""
    addresses = [f"127.0.0.1:{port}" for port in workers_of.free_ports(3)]
    own = flags + ["--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--metrics-json", os.path.join(folder, "stopped.json")]
    processes = [workers_of.start(program, own, i, addresses, {}) for i in range(3)]
    written = ""
    while "epoch 2/" not in written:
        line = processes[0].stdout.readline()
        if not line:
            break
        written += line
    time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    outputs = [written] + ["", ""]
    for index, process in enumerate(processes):
        outputs[index] += process.communicate(timeout=600)[0]
    return [process.returncode for process in processes], outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    program, steps = arguments.program, arguments.steps
    replicas = ["--replicas", str(REPLICAS)]
    with tempfile.TemporaryDirectory() as folder:
        total = workers_of.FLAGS + ["--steps", str(4 * steps)]
        calm = workers_of.run_mirrored(program, REPLICAS, total, folder)
        saved = ["--checkpoint-dir", os.path.join(folder, "run")]
        for part, (processes, strategy) in enumerate(PARTS, start=1):
            flags = workers_of.FLAGS + replicas + saved + ["--steps", str(part * steps)]
            flags += ["--resume"] if part > 1 else []
            workers_of.run_workers(program, ["cpu:0"] * processes, flags + workers_of.ALL_CUT, folder, strategy=strategy)
        got = workers_of.run_mirrored(program, REPLICAS, total + saved + ["--resume"], folder)
        failures = 0
        for key in workers_of.COMPARED:
            if calm[key] != got[key]:
                print(f"DIFFERENT {key} after 4, 2, 3 processes and one")
                failures += 1
        stopped = ["--checkpoint-dir", os.path.join(folder, "stopped")]
        endless = workers_of.FLAGS + replicas + stopped + ["--steps", "100000"]
        codes, outputs = stop_one_worker(program, endless, folder)
        if codes != [STOPPED_ON_REQUEST] * 3:
            sys.exit(f"FAILED: a worker got SIGTERM; exit codes {codes}, expected {STOPPED_ON_REQUEST}\n"
                     + "\n---\n".join(text[-3000:] for text in outputs))
        step = max(int(name.split("_")[1].split(".")[0]) for name in os.listdir(os.path.join(folder, "stopped"))
                   if name.startswith("step_"))
        longer = workers_of.FLAGS + ["--steps", str(step + 3)]
        calm = workers_of.run_mirrored(program, REPLICAS, longer, folder)
        got = workers_of.run_workers(program, ["cpu:0"] * 2, longer + replicas + stopped + ["--resume"], folder)
        for key in workers_of.COMPARED:
            if calm[key] != got[key]:
                print(f"DIFFERENT {key} after a stop at step {step}")
                failures += 1
        print(f"  {'same' if not failures else 'DIFFERENT':9} {got['weights_hash']}  4 -> 2 -> 3 -> 1 processes; "
              f"stopped by SIGTERM after step {step}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
