#!/usr/bin/env python3
# Times causal attention of tutti, its composition from simpler operations, and PyTorch's
# scaled_dot_product_attention; prints a table.
# SPDX-License-Identifier: Apache-2.0
"""compare.py --build build [--torch-python PYTHON] [--steps 128,512,2048] [--pairs 5] [--out benchmarks/results/attention]

Measures float32, forward and backward, with 4 rows of 8 heads of 64 features and one thread. Each round runs every program
once, in a separate process; ratios compare runs of one round.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train_step"))
import compare as protocol  # noqa: E402  train_step/compare.py

TORCH = """
import json, statistics, sys, time, torch
from torch.nn import functional as F
torch.set_num_threads(1)
query, key, value = (torch.randn(4, 8, int(sys.argv[1]), 64, requires_grad=True) for _ in range(3))
def step():
    torch.autograd.grad(F.scaled_dot_product_attention(query, key, value, is_causal=True).sum(), (query, key, value))
step()
times, begin = [], time.perf_counter()
while len(times) < 3 or time.perf_counter() - begin < 1.0:
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(times)}))
"""


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="a build folder with TUTTI_BUILD_BENCHMARKS=ON")
    parser.add_argument("--torch-python", default="/usr/bin/python3", help="a Python with torch 2 or newer")
    parser.add_argument("--steps", default="128,512,2048")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", default="", help="writes the table to OUT.txt")
    return parser.parse_args()


def run_once(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        sys.exit(f"attention/compare.py: {' '.join(command[:2])} exited with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def main():
    flags = parse_flags()
    program = str(pathlib.Path(flags.build) / "bin" / "attention_time")
    version = protocol.module_version(flags.torch_python, "torch")
    has_torch = version is not None and int(version.split(".")[0]) >= 2
    lines = [protocol.machine(), "attention/compare.py, causal, float32, forward and backward, 4 x 8 heads x 64 features, "
             "one thread; a ratio is the other's time over ours",
             f"torch {version}" if has_torch else "not compared with torch 2: --torch-python",
             f"{'steps':>6} {'ms':>8} {'MiB':>6} {'parts ms':>9} {'parts MiB':>9}  {'parts / ours':21}  torch / ours"]
    for steps in flags.steps.split(","):
        commands = {"ours": [program, "--steps", steps], "parts": [program, "--steps", steps, "--way", "parts"]}
        if has_torch:
            commands["torch"] = [flags.torch_python, "-c", TORCH, steps]
        rounds = [{name: run_once(command) for name, command in commands.items()} for _ in range(flags.pairs)]

        def median(name, key, rounds=rounds):
            return statistics.median(each[name][key] for each in rounds)

        ratios = {name: spread([each[name]["seconds"] / each["ours"]["seconds"] for each in rounds]) for name in commands}
        lines.append(f"{steps:>6} {1e3 * median('ours', 'seconds'):8.3g} {median('ours', 'bytes') / 2**20:6.1f} "
                     f"{1e3 * median('parts', 'seconds'):9.3g} {median('parts', 'bytes') / 2**20:9.1f}  "
                     f"{ratios['parts']:21}  {ratios.get('torch', '-')}")
    print("\n".join(lines))
    if flags.out:
        pathlib.Path(flags.out + ".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
