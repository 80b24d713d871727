#!/usr/bin/env python3
# Times training steps of tutti and its peers in interleaved runs, and reports the medians of
# pairwise ratios.
# SPDX-License-Identifier: Apache-2.0
"""compare.py --build build [--models mlp,tiny] [--threads 1,2] [--pairs 5] [--out benchmarks/results/today]

Each round runs every program once, one after another, in separate processes. A ratio compares two runs of one round.
Two threads of tutti are two replicas with one thread each. A ping-pong between the two CPUs before each round shows
whether they were near (below 250 ns), far, or busy with other programs; the column "others" is the number of CPUs that
other programs used. If it is not 0, look at the ratio of the fastest tenth of the steps. Lists missing peers, with the
packages to install.
"""
import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

import floor
import peer_report
import plot

# Variables that limit instruction sets. The results list those that are set.
LIMITS = ("TUTTI_MAX_ISA", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE")
HERE = pathlib.Path(__file__).resolve().parent
IMAGES = ("cifar10_cnn", "small_cnn", "resnet20")
NEAR_NS, FAR_NS = 250.0, 1000.0  # above FAR_NS, other programs used the CPUs


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="a build folder with TUTTI_BUILD_BENCHMARKS=ON")
    parser.add_argument("--models", default=",".join(peer_report.BATCH_SIZES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the timed steps of one run")
    parser.add_argument("--torch-python", action="append", default=[],
                        help="a Python with torch; may be repeated; default /usr/bin/python3")
    parser.add_argument("--tensorflow-python", default=sys.executable, help="a Python with tensorflow")
    parser.add_argument("--xla", action="store_true", help="also time steps that XLA compiles: TpuStrategy with the plugin of "
                        "BUILD/xla_plugin or TUTTI_PJRT_PLUGIN, and TensorFlow with jit_compile=True")
    parser.add_argument("--peers", default="", help="only programs whose names contain one of these words (-word: excludes)")
    parser.add_argument("--out", default="", help="writes all runs to OUT.json, the table to OUT.txt, the figure to OUT.svg and its numbers to OUT.csv")
    return parser.parse_args()


def module_version(python, module):
    """Returns the version of a module, or None if it is missing. Does not import it, which would take seconds."""
    code = f"import importlib.metadata as m, importlib.util as u; u.find_spec('{module}') or exit(1); "
    code += f"d = m.packages_distributions().get('{module}') if hasattr(m, 'packages_distributions') else None; "
    code += f"print(m.version((d or ['{module}'])[0]))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip().split("+")[0] or "?" if done.returncode == 0 else None


class Contenders:
    """Programs that are installed, and installation hints for missing programs."""

    def __init__(self, flags):
        self.flags = flags
        self.bin = pathlib.Path(flags.build) / "bin"
        self.missing = []
        for program in ("train_step", "floor_speeds"):
            if not (self.bin / program).exists():
                sys.exit(f"compare.py: {self.bin}/{program} does not exist; expected a build with oneDNN and "
                         "-DTUTTI_BUILD_BENCHMARKS=ON")
        self.torch = []
        for python in flags.torch_python or ["/usr/bin/python3"]:
            version = module_version(python, "torch")
            if version is None:
                self.missing.append("torch: apt-get install python3-torch libopenblas0-pthread, or --torch-python")
            else:
                self.torch.append((python, version))
        self.tensorflow = module_version(flags.tensorflow_python, "tensorflow")
        if self.tensorflow is None:
            self.missing.append("tensorflow: pip install tensorflow-cpu and --tensorflow-python")
        self.libtorch = (self.bin / "libtorch_train_step").exists()
        if not self.libtorch:
            self.missing.append("libtorch: apt-get install libtorch-dev, then configure again")
        # TUTTI_MAX_ISA=avx2 gives equal bits on different processors; an extra run measures its cost.
        self.wider = "avx512" in pathlib.Path("/proc/cpuinfo").read_text() and "TUTTI_MAX_ISA" not in os.environ
        blas = os.path.realpath("/etc/alternatives/libblas.so.3-x86_64-linux-gnu")
        if "/blas/" in blas:
            self.missing.append("OpenBLAS: Debian's torch would use the slow reference BLAS; "
                                "apt-get install libopenblas0-pthread")

    def commands(self, model, threads):
        """Returns {name: command}. All other programs are compared with the first."""
        layouts = ("default", "channels_last") if model in IMAGES else ("default",)
        tutti = str(self.bin / "train_step")
        runs = {"tutti": [tutti, "--replicas", str(threads)]}
        if self.wider:
            runs["tutti, avx2"] = ["env", "TUTTI_MAX_ISA=avx2"] + runs["tutti"]
        if threads == 1:
            runs["tutti, one_device strategy"] = [tutti, "--strategy", "one_device"]
        else:
            runs["tutti, 1 replica"] = [tutti]
        for python, version in self.torch:
            compiled = ("compiled",) if model == "gpt" and int(version.split(".")[0]) >= 2 else ()
            for layout in layouts + compiled:
                runs[f"torch {version} {layout}"] = [python, str(HERE / "torch_train_step.py"), "--layout", layout,
                                                     "--threads", str(threads)]
            if threads > 1:
                runs[f"torch {version} DDP"] = [python, str(HERE / "torch_train_step.py"), "--layout", layouts[-1],
                                                "--replicas", str(threads), "--steps", "20"]
        if self.libtorch and model != "gpt":
            runs["libtorch"] = [str(self.bin / "libtorch_train_step"), "--layout", layouts[-1],
                                "--threads", str(threads)]
        if self.tensorflow and model != "gpt":
            script = [self.flags.tensorflow_python, str(HERE / "tensorflow_train_step.py")]
            name = f"tensorflow {self.tensorflow}"
            runs[name] = script + ["--threads", str(threads)]
            if threads > 1:
                runs[f"{name} mirrored"] = script + ["--replicas", str(threads), "--threads", str(threads)]
            if self.flags.xla:
                runs[f"{name} xla"] = script + ["--layout", "xla", "--threads", str(threads)]
        if self.flags.xla:  # XLA has its own threads, as many as there are CPUs
            runs["tutti tpu, 1 replica"] = [tutti, "--strategy", "tpu"]
            if threads > 1:
                runs["tutti tpu"] = [tutti, "--strategy", "tpu", "--replicas", str(threads)]
            plugin = pathlib.Path(self.flags.build) / "xla_plugin/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"
            os.environ.setdefault("TUTTI_PJRT_PLUGIN", str(plugin))
        words = [w for w in self.flags.peers.split(",") if w and w[0] != "-"]
        without = [w[1:] for w in self.flags.peers.split(",") if w.startswith("-")]
        return {name: command for name, command in runs.items()
                if name.startswith("tutti") or
                ((not words or any(w in name for w in words)) and not any(w in name for w in without))}


def cpu_busy_seconds():
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(t) for t in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def run_once(command, model, threads, seconds):
    """Runs a program. Returns its report, with the number of CPUs that other programs used meanwhile."""
    command = command + ["--model", model, "--seconds", str(seconds), "--json"]
    if "--steps" not in command:
        command += ["--steps", "100000" if model == "tiny" else "1000"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    if any(part.endswith("/train_step") for part in command):  # tutti's threads are its replicas
        environment["OMP_NUM_THREADS"] = "1"
    busy, usage = cpu_busy_seconds(), resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    environment["TRAIN_STEP_STARTED_NS"] = str(time.monotonic_ns())
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wall = time.monotonic() - begin
    if done.returncode != 0:
        lines = done.stderr.strip().split("\n")
        return {"error": next((line for line in lines if "error: " in line), lines[-1]), "command": command}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    report = json.loads(done.stdout.strip().split("\n")[-1].removeprefix("[worker-0]: "))
    times = report.pop("step_seconds")
    report["num_steps"] = len(times)
    report["fast_step_seconds"] = sorted(times)[len(times) // 10]
    report["step_seconds_sample"] = times[:20]
    report["foreign_cpus"] = round(max(0.0, cpu_busy_seconds() - busy - own) / wall, 2)
    return report


def ping_pong(flags):
    done = subprocess.run([str(pathlib.Path(flags.build) / "bin" / "pingpong")], capture_output=True, text=True,
                          check=False)
    return float(done.stdout) if done.returncode == 0 else None


def speeds_of(flags, threads):
    """Returns the maximum speeds {number of threads: speeds}, for one thread and for `threads`."""
    program = str(pathlib.Path(flags.build) / "bin" / "floor_speeds")
    return {number: floor.measure_speeds(program, number) for number in {1, threads}}


def fastest_speeds(rounds, threads):
    """Returns the best speeds of all rounds, because a disturbed round must not raise the lower bound."""
    return {key: max(r["speeds"][threads][key] for r in rounds) for key in ("flops", "bytes")}


def measure(flags, contenders, model, threads):
    commands = contenders.commands(model, threads)
    rounds = []
    for number in range(flags.pairs):
        entry = {"pingpong_ns": ping_pong(flags), "speeds": speeds_of(flags, threads), "runs": {}}
        for name, command in commands.items():
            entry["runs"][name] = run_once(command, model, threads, flags.seconds)
        rounds.append(entry)
        print(f"{model}, {threads} threads: round {number + 1} of {flags.pairs}", file=sys.stderr, flush=True)
    return {"model": model, "threads": threads, "rounds": rounds, "rows": summarise(model, threads, rounds)}


def summarise(model, threads, rounds):
    rows = []
    for name in rounds[0]["runs"]:
        failed = [r["runs"][name]["error"] for r in rounds if "error" in r["runs"][name]]
        if failed:
            rows.append({"name": name, "error": failed[0]})
            continue
        runs = [r["runs"][name] for r in rounds]
        pairs = [r for r in rounds if "error" not in r["runs"]["tutti"]]
        ratios = [r["runs"]["tutti"]["examples_per_second"] / r["runs"][name]["examples_per_second"] for r in pairs]

        fast = [r["runs"][name]["fast_step_seconds"] / r["runs"]["tutti"]["fast_step_seconds"] for r in pairs]

        def median(key, runs=runs):
            return statistics.median(run[key] for run in runs)

        step = median("median_step_seconds")
        row_threads = 1 if name == "tutti, 1 replica" else threads
        rows.append({"name": name, "step_seconds": step, "steps_per_second": 1 / step,
                     "examples_per_second": median("examples_per_second"),
                     "share_of_floor": floor.floor_seconds(model, runs[0]["batch_size"],
                                                           fastest_speeds(rounds, row_threads)) / step,
                     "peak_rss_bytes": median("peak_rss_bytes"), "first_step_seconds": median("first_step_seconds"),
                     "cpus_used": median("cpus_used"), "foreign_cpus": median("foreign_cpus"),
                     "fast_ratio": statistics.median(fast),
                     "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}})
    return rows


def place(nanoseconds):
    if nanoseconds is None:
        return "?"
    return "near" if nanoseconds < NEAR_NS else "far" if nanoseconds < FAR_NS else "busy"


def table(results):
    lines = []
    for result in results:
        places = [place(r["pingpong_ns"]) for r in result["rounds"]]
        speeds = fastest_speeds(result["rounds"], result["threads"])
        lines += ["", f"{result['model']}, {result['threads']} threads; CPUs: {' '.join(places)}; floor: "
                  f"{speeds['flops'] / 1e9:.0f} GFLOP/s, {speeds['bytes'] / 1e9:.0f} GB/s",
                  f"{'program':34} {'ms/step':>9} {'examples/s':>11} {'of floor':>8} {'MiB':>6} {'first s':>8} "
                  f"{'CPUs':>5} {'others':>6}  tutti/this: median (min .. max), fastest tenth of steps"]
        for row in result["rows"]:
            if "error" in row:
                lines.append(f"{row['name']:34} failed: {row['error']}")
                continue
            ratio = row["ratio"]
            lines.append(f"{row['name']:34} {1e3 * row['step_seconds']:9.4g} {row['examples_per_second']:11.1f} "
                         f"{row['share_of_floor']:8.1%} {row['peak_rss_bytes'] / 2**20:6.0f} "
                         f"{row['first_step_seconds']:8.3f} {row['cpus_used']:5.2f} {row['foreign_cpus']:6.2f}  "
                         f"{ratio['median']:.2f} ({ratio['min']:.2f} .. {ratio['max']:.2f}), "
                         f"{row['fast_ratio']:.2f}")
    return "\n".join(lines)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.processor()}, {platform.platform()}"


def write(flags, document, text):
    if not flags.out:
        return
    out = pathlib.Path(flags.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(out.name + ".json").write_text(json.dumps(document, indent=1) + "\n")
    out.with_name(out.name + ".txt").write_text(text + "\n")
    rows = [{"label": f"{result['model']} {result['threads']}t / {row['name']}", **row["ratio"]}
            for result in document["results"] for row in result["rows"]
            if "ratio" in row and row["name"] != "tutti"]
    plot.write(out, rows, "Training speed: tutti over each program (x)")


def main():
    flags = parse_flags()
    contenders = Contenders(flags)
    arguments = ["PYTHON" if "python" in a and "/" in a and not a.endswith(".py") else a for a in sys.argv[1:]]
    document = {"machine": machine(), "command": "compare.py " + " ".join(arguments),
                "environment": {k: v for k, v in os.environ.items() if k in LIMITS}, "date": time.strftime("%Y-%m-%d"), "missing": contenders.missing, "results": []}
    for line in contenders.missing:
        print(f"not compared with {line}")
    for model in flags.models.split(","):
        for threads in (int(t) for t in flags.threads.split(",")):
            document["results"].append(measure(flags, contenders, model, threads))
            text = "\n".join([document["machine"], document["command"]] +
                             [f"not compared with {line}" for line in contenders.missing]) + table(document["results"])
            write(flags, document, text)  # after each, so that an interrupted run keeps its results
    print(text)
    return 1 if any("error" in row for r in document["results"] for row in r["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
