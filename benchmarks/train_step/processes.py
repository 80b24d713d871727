#!/usr/bin/env python3
# Times training in several processes with one thread each, its scaling, and PyTorch's DDP.
# SPDX-License-Identifier: Apache-2.0
"""processes.py --build build [--models mlp,small_cnn] [--torch-python PYTHON] [--pairs 5] [--out benchmarks/results/processes]

The global batch does not depend on the number of processes. Runs are interleaved as in compare.py, and ratios compare
runs of one round. "alone" is one process with the batch that each of several processes has. The remaining time of a step
is spent on sums, on waiting for other processes, and on sharing caches and memory; more processes than cores also share
the cores. "twice at once" is two processes like "alone", which share only caches and memory.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import compare
import peer_report

ALONE = "1 process, alone with 1/2 of the batch"
TWICE = '"$0" "$@" > /dev/null & "$0" "$@"; wait'  # time of two processes that share only caches and memory
STEPS = {"mlp": 1000, "small_cnn": 40, "cifar10_cnn": 25, "resnet20": 10, "gpt": 20, "tiny": 20000}


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="a build folder with TUTTI_BUILD_BENCHMARKS=ON")
    parser.add_argument("--models", default="mlp,small_cnn,cifar10_cnn")
    parser.add_argument("--processes", default="2,4", help="numbers of processes to measure, in addition to one")
    parser.add_argument("--only", default="", help="only runs whose names contain one of these words, such as torch")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--max-others", type=float, default=float("inf"),
                        help="other programs' CPU use above which a run is repeated, up to 10 runs in all")
    parser.add_argument("--torch-python", action="append", default=[],
                        help="a Python with torch; may be repeated; default /usr/bin/python3")
    parser.add_argument("--out", default="", help="writes OUT.json and OUT.txt")
    return parser.parse_args()


def torch_pythons(flags):
    found = [(python, compare.module_version(python, "torch")) for python in flags.torch_python or ["/usr/bin/python3"]]
    return [(python, version) for python, version in found if version is not None]


def commands(flags, model):
    """Returns {name: (number of processes, command)}."""
    program = pathlib.Path(flags.build).resolve() / "bin"
    steps = ["--steps", str(STEPS[model])]
    train = [str(program / "train_step"), *steps]
    runs = {"1 process": (1, train)}
    for count in (int(c) for c in flags.processes.split(",")):
        job = [str(program / "tutti"), "run", "-n", str(count), "--", *train, "--strategy", "multi_worker_mirrored"]
        runs[f"{count} processes, shared memory"] = (count, job + ["--transport", "shm"])
        runs[f"{count} processes, TCP"] = (count, job + ["--transport", "tcp"])
        batch = peer_report.BATCH_SIZES[model] // count
        runs[f"1 process, alone with 1/{count} of the batch"] = (1, train + ["--batch-size", str(batch)])
    runs["2 replicas (threads) of mirrored"] = (2, train + ["--replicas", "2"])
    script = str(pathlib.Path(__file__).with_name("torch_train_step.py"))
    layout = "channels_last" if model in compare.IMAGES else "default"
    half = ["--batch-size", str(peer_report.BATCH_SIZES[model] // 2)]
    for python, version in torch_pythons(flags):
        command = [python, script, "--layout", layout, *steps]
        runs[f"torch {version}, 1 process"] = (1, command + ["--threads", "1"])
        runs[f"torch {version}, {ALONE}"] = (1, command + ["--threads", "1", *half])
        runs[f"torch {version} DDP, 2 processes"] = (2, command + ["--replicas", "2"])
    libtorch = program / "libtorch_train_step"
    if libtorch.exists() and model != "gpt":
        command = [str(libtorch), "--layout", layout, *steps]
        runs["libtorch, 1 process"] = (1, command)
        runs[f"libtorch, {ALONE}"] = (1, command + half)
        runs["libtorch, twice at once with 1/2 of the batch"] = (2, ["sh", "-c", TWICE, *command, *half])
        runs["libtorch with tutti, 2 processes"] = (2, [str(program / "tutti"), "run", "-n", "2", "--", *command])
    return {name: run for name, run in runs.items() if not flags.only or any(word in name for word in flags.only.split(","))}


def run_alone(flags, command, model):
    for _ in range(10):
        report = compare.run_once(command, model, 1, 20.0)
        if "error" in report or report["foreign_cpus"] <= flags.max_others:
            break
    return report


def measure(flags, model):
    runs = commands(flags, model)
    rounds = []
    for number in range(flags.pairs):
        entry = {"pingpong_ns": compare.ping_pong(flags), "runs": {}}
        for name, (_, command) in runs.items():
            entry["runs"][name] = run_alone(flags, command, model)
        rounds.append(entry)
        print(f"{model}: round {number + 1} of {flags.pairs}", file=sys.stderr, flush=True)
    return {"model": model, "rounds": rounds, "processes": {name: count for name, (count, _) in runs.items()}}


def ratios(result, name, other):
    """Returns the ratio of two programs' speeds for each round in which both ran; [] if --only excludes one."""
    if not {name, other} <= result["processes"].keys():
        return []
    pairs = [(r["runs"][name], r["runs"][other]) for r in result["rounds"]]
    return [a["examples_per_second"] / b["examples_per_second"] for a, b in pairs if "error" not in a and "error" not in b]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})" if values else "-"


def median(result, name, key):
    return statistics.median(r["runs"][name][key] for r in result["rounds"])


def reason(result, name, count, program):
    """Returns a text that splits the time of a step, in ms, into the time of one process alone and the remaining time."""
    name_alone = f"{program}1 process, alone with 1/{count} of the batch"
    if name_alone not in result["processes"]:
        return ""
    alone = 1e3 * median(result, name_alone, "median_step_seconds")
    step = 1e3 * median(result, name, "median_step_seconds")
    turns = max(1.0, count / os.cpu_count())
    text = f"own part {alone:.3g}"
    if turns > 1:
        text += f" x {turns:.3g} turns of a core"
    return f"{text}, sums and waiting {step - alone * turns:.3g}"


def rows(result):
    peers = [name for name in result["processes"] if "DDP" in name]
    for name, count in result["processes"].items():
        failed = [r["runs"][name]["error"] for r in result["rounds"] if "error" in r["runs"][name]]
        if failed:
            yield [name, f"failed: {failed[0]}"]
            continue
        row = [name, f"{1e3 * median(result, name, 'median_step_seconds'):.4g}",
               f"{median(result, name, 'examples_per_second'):.1f}", "", "", ""]
        if "processes" in name:
            program = name.split(" DDP")[0] + ", " if "DDP" in name else "libtorch, " if name.startswith("libtorch") else ""
            scaling = ratios(result, name, f"{program}1 process")
            row[3] = f"{statistics.median(scaling) / count:.0%}" if scaling else "-"
            row[5] = reason(result, name, count, program)
            if count == 2 and "DDP" not in name:
                row[4] = "; ".join(spread(ratios(result, name, peer)) for peer in peers)
        yield row


def table(results):
    lines = []
    for result in results:
        places = [compare.place(r["pingpong_ns"]) for r in result["rounds"]]
        others = max(run.get("foreign_cpus", 0.0) for r in result["rounds"] for run in r["runs"].values())
        peers = ", ".join(name for name in result["processes"] if "DDP" in name) or "DDP (no torch here)"
        lines += ["", f"{result['model']}; CPUs: {' '.join(places)}; others used up to {others:.2f} CPUs",
                  f"{'program':42} {'ms/step':>8} {'examples/s':>11} {'efficiency':>10}  faster than {peers} | ms of a step"]
        for row in rows(result):
            lines.append(f"{row[0]:42} {row[1]}" if len(row) == 2 else
                         f"{row[0]:42} {row[1]:>8} {row[2]:>11} {row[3]:>10}  {row[4]}{' | ' if row[5] else ''}{row[5]}")
    return "\n".join(lines)


def main():
    flags = parse_flags()
    arguments = ["PYTHON" if "python" in a and "/" in a else a for a in sys.argv[1:]]
    document = {"machine": compare.machine(), "command": "processes.py " + " ".join(arguments),
                "date": time.strftime("%Y-%m-%d"), "results": []}
    text = ""
    for model in flags.models.split(","):
        document["results"].append(measure(flags, model))
        text = "\n".join([document["machine"], document["command"]]) + table(document["results"])
        if flags.out:  # after each, so that an interrupted run keeps its results
            out = pathlib.Path(flags.out)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.with_name(out.name + ".json").write_text(json.dumps(document, indent=1) + "\n")
            out.with_name(out.name + ".txt").write_text(text + "\n")
    print(text)
    return 1 if any("error" in run for r in document["results"] for e in r["rounds"] for run in e["runs"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
