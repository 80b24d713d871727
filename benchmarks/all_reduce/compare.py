#!/usr/bin/env python3
# Times all_reduce of tutti, OpenMPI and Gloo in interleaved runs, and draws the results.
# SPDX-License-Identifier: Apache-2.0
"""compare.py --build build [--rounds 5] [--first 1024] [--last 268435456] [--out benchmarks/results/all_reduce]

Each round first runs `tutti bench all_reduce` (threads of one process, a list of gradients in place, compared with the
lower bound). Then it runs tutti between processes, and each setting of each peer (processes of this machine, one buffer
in place), one after another, for all sizes. A ratio compares two runs of one round. For each size, the table has
OpenMPI's best setting (with CMA, where the kernel copies between processes; without it; with CMA and memory that is not
returned to the system) and Gloo's best algorithm. A ping-pong before and after shows whether the cores were near, far, or
busy with other programs. Lists missing programs, with the packages to install, and programs that failed or timed out.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import log_log

MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
KEEP = ["-x", "MALLOC_MMAP_THRESHOLD_=4294967296", "-x", "MALLOC_TRIM_THRESHOLD_=4294967296"]
WITHOUT_CMA = ["--mca", "btl_vader_single_copy_mechanism", "none"]


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="a build folder with TUTTI_BUILD_BENCHMARKS=ON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--first", type=int, default=1 << 10, help="smallest size in bytes; sizes grow by factors of 4")
    parser.add_argument("--last", type=int, default=1 << 28)
    parser.add_argument("--op-names", default="", help="tutti's operations to measure; default: all")
    parser.add_argument("--gloo", default="halving_doubling,new_bcube",
                        help="Gloo's algorithms; ring_chunked and new_ring may take 50 ms per call over a loopback device")
    parser.add_argument("--ways", default="shm-shared,shm-private,tcp",
                        help="tutti's connections between processes: shared memory with shared or private buffers, or TCP")
    parser.add_argument("--reference", default="tutti canonical", help="name of the program with whose times all times are compared")
    parser.add_argument("--timeout", type=float, default=180.0, help="time limit for one run of a program, in seconds")
    parser.add_argument("--out", default="", help="writes all rounds to OUT.json, the table to OUT.md, the figure to OUT.svg and its numbers to OUT.csv")
    return parser.parse_args()


def peers(flags):
    """Returns {name: command}, and the names of peers that are not installed."""
    found, missing = {}, []
    programs = pathlib.Path(flags.build).resolve() / "bin"
    sizes = [str(flags.first), str(flags.last)]
    mpi = programs / "mpi_all_reduce"
    if mpi.exists() and shutil.which("mpirun"):
        bind = ["--bind-to", "core"] if flags.ranks <= len(os.sched_getaffinity(0)) else []
        start = MPI + bind + ["-np", str(flags.ranks)]
        for name, setting in (("CMA", []), ("no CMA", WITHOUT_CMA), ("CMA, memory kept", KEEP)):
            found[f"openmpi {name}"] = start + setting + [str(mpi), f"openmpi {name}"] + sizes
    else:
        missing.append("OpenMPI: apt-get install libopenmpi-dev openmpi-bin, then configure and build again")
    processes = programs / "process_all_reduce"
    if processes.exists():
        for way in filter(None, flags.ways.split(",")):
            found[f"tutti/{way}"] = [str(processes), str(flags.ranks), way] + sizes
    else:
        missing.append("tutti between processes: build the target process_all_reduce")
    gloo = programs / "gloo_all_reduce"
    if gloo.exists():
        for algorithm in flags.gloo.split(","):
            found[f"gloo {algorithm}"] = [str(gloo), str(flags.ranks), algorithm] + sizes
    else:
        missing.append("Gloo: apt-get install libgloo-dev, then configure and build again")
    return found, missing


def run_peer(command, timeout):
    """Returns {size: microseconds}, and an error message or "". Keeps what was measured before a timeout."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    trouble = ""
    try:
        output, errors = process.communicate(timeout=timeout)
        if process.returncode != 0:
            trouble = (errors.strip().split("\n") or ["?"])[-1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, errors = process.communicate()
        trouble = f"took more than {timeout:g} s"
    times = {}
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        if entry["right"]:
            times[entry["size"]] = entry["time_us"]
        else:
            trouble = f"wrong result at {entry['size']} bytes"
    return times, trouble


def run_tutti(flags):
    program = pathlib.Path(flags.build).resolve() / "bin" / "tutti"
    if not program.exists():
        sys.exit(f"compare.py: {program} does not exist; build the target tutti_cli first")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tutti.json")
        command = [str(program), "bench", "all_reduce", "-b", str(flags.first), "-e", str(flags.last), "-f", "4",
                   "--replicas", str(flags.ranks), "--rounds", "3", "-c", "1", "--json", path]
        if flags.op_names:
            command += ["--op-names", flags.op_names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"compare.py: {' '.join(command)} failed: {done.stderr.strip()}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def measure(flags, commands):
    rounds = []
    for number in range(flags.rounds):
        entry = {"tutti": run_tutti(flags), "peers": {}, "trouble": {}}
        for name, command in commands.items():
            entry["peers"][name], trouble = run_peer(command, flags.timeout)
            if trouble:
                entry["trouble"][name] = trouble
        rounds.append(entry)
        print(f"round {number + 1} of {flags.rounds}", file=sys.stderr, flush=True)
    return rounds


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def times_in(entry):
    """Returns {name: {size: microseconds}} of one round: tutti's operations, the lower bound, the best setting of each peer."""
    times = {}
    for row in entry["tutti"]["results"]:
        times.setdefault(f"tutti {row['name']}", {})[row["size"]] = row["in_place"]["time_us"]["median"]
        times.setdefault("floor", {})[row["size"]] = row["floor_us"]["median"]
    for name, of_sizes in entry["peers"].items():
        peer = name if name.startswith("tutti/") else f"{name.split()[0]} (best setting)"
        best = times.setdefault(peer, {})
        for size, microseconds in of_sizes.items():
            best[size] = min(best.get(size, microseconds), microseconds)
    return times


def summarise(rounds, reference):
    """Returns one row for each name and size, with times, bus bandwidth and ratio to the reference."""
    per_round = [times_in(entry) for entry in rounds]
    ranks = rounds[0]["tutti"]["ranks"]
    rows = []
    for name in per_round[0]:
        for size in sorted(per_round[0][name]):
            with_it = [t for t in per_round if size in t.get(name, {})]
            times = [t[name][size] for t in with_it]
            ours = [t for t in with_it if size in t.get(reference, {})]
            rows.append({"name": name, "size": size, "time_us": spread(times),
                         "busbw": size / statistics.median(times) / 1e3 * 2 * (ranks - 1) / ranks,
                         "times_of_reference": spread([t[name][size] / t[reference][size] for t in ours])})
    return rows


def table(document):
    lines = ["# all_reduce compared with OpenMPI, Gloo and the floor", "",
             f"{document['machine']}; {document['ranks']} ranks, float32 sums in place, "
             f"{document['num_rounds']} interleaved rounds. `{document['command']}`", "",
             f"Core distance before and after tutti's runs, by round: {', '.join(document['places'])}.", ""]
    lines += [f"Not compared with {line}\n" for line in document["missing"] + document["left_out"]]
    lines += [f"Trouble: {line}\n" for line in document["trouble"]]

    def spread_text(value):
        return f"{value['median']:.2f} ({value['min']:.2f} .. {value['max']:.2f})"

    rows, reference = document["rows"], document["reference"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    for title, key, text, shown in (
            ("Microseconds: median over rounds.", "time_us", lambda value: f"{value['median']:.2f}", names),
            (f"Time divided by that of {reference} in the same round: median (minimum .. maximum).", "times_of_reference", spread_text,
             [name for name in names if name != reference])):
        lines += [title, "", f"| size | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
        cells = {(row["size"], row["name"]): text(row[key]) for row in rows if row[key]}
        lines += [f"| {log_log.size_name(size)} | {' | '.join(cells.get((size, name), '-') for name in shown)} |"
                  for size in sorted({row["size"] for row in rows})]
        lines.append("")
    return "\n".join(lines)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.processor()}, {platform.platform()}"


def write(out, document):
    lines = {}
    for row in document["rows"]:
        lines.setdefault(row["name"], []).append((row["size"], row["busbw"]))
    path = pathlib.Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".json").write_text(json.dumps(document, indent=1) + "\n")
    path.with_name(path.name + ".md").write_text(table(document))
    log_log.write(path, lines, f"all_reduce, {document['ranks']} ranks on one machine", "bus bandwidth (GB/s)")


def main():
    flags = parse_flags()
    commands, missing = peers(flags)
    for line in missing:
        print(f"not compared with {line}")
    rounds = measure(flags, commands)
    skipped = rounds[0]["tutti"]["left_out"]
    document = {"machine": machine(), "command": "compare.py " + " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%d"),
                "ranks": flags.ranks, "reference": flags.reference, "num_rounds": flags.rounds, "missing": missing,
                "left_out": [f"tutti {each['name']}: {each['reason']}" for each in skipped],
                "trouble": sorted({f"{name}: {text}" for entry in rounds for name, text in entry["trouble"].items()}),
                "places": [f"{entry['tutti']['pingpong'][key]} ({entry['tutti']['pingpong'][key + '_ns']:.0f} ns)"
                           for entry in rounds for key in ("before", "after")],
                "rows": summarise(rounds, flags.reference), "rounds": rounds}
    if flags.out:
        write(flags.out, document)
    print(table(document))
    return 1 if document["trouble"] else 0


if __name__ == "__main__":
    sys.exit(main())
