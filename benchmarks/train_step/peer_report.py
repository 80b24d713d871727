# Flags, timing and report of the peers that are Python programs, as in train_step_report.h.
# SPDX-License-Identifier: Apache-2.0
"""Imports only the standard library, so that only the peer's own start is timed."""
import argparse
import json
import os
import resource
import statistics
import time

BATCH_SIZES = {"cifar10_cnn": 128, "small_cnn": 256, "mlp": 128, "resnet20": 128, "gpt": 32, "tiny": 8}


def parse_flags(description, layouts):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=BATCH_SIZES, default="tiny")
    parser.add_argument("--batch-size", type=int, default=0, help="examples per step; 0: the default of the model")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=3, help="number of untimed steps at the start")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of the measurement, in seconds")
    parser.add_argument("--layout", choices=layouts, default=layouts[0])
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    flags.batch_size = flags.batch_size or BATCH_SIZES[flags.model]
    # Debian's torch calls OpenBLAS, whose threads set_num_threads() does not limit.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(flags.threads)
    return flags


def seconds_since_start():
    if "TRAIN_STEP_STARTED_NS" in os.environ:
        return 1e-9 * (time.monotonic_ns() - int(os.environ["TRAIN_STEP_STARTED_NS"]))
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
        return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def measure(flags, step):
    """Times calls of step(), which ends when the step has finished and returns an object with the loss. Returns the seconds
    until the end of the first step, the duration of each timed step, the CPUs used, and the last loss."""
    loss = step()
    first = seconds_since_start()
    for _ in range(1, flags.warmup):
        loss = step()
    times = []
    cpu = time.process_time()
    begin = last = time.perf_counter()
    for i in range(flags.steps):
        loss = step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if i >= 2 and now - begin > flags.seconds:
            break
    return first, times, (time.process_time() - cpu) / (last - begin), loss


def print_report(flags, program, parameters, measured, loss):
    first, times, cpus_used, _ = measured
    median = statistics.median(times)
    report = {
        "program": program, "variant": flags.layout, "model": flags.model, "batch_size": flags.batch_size,
        "replicas": flags.replicas, "threads": flags.threads, "parameters": parameters,
        "median_step_seconds": median, "steps_per_second": 1 / median,
        "examples_per_second": flags.batch_size / median,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "first_step_seconds": first, "cpus_used": cpus_used, "loss": loss, "step_seconds": times,
    }
    if flags.json:
        print(json.dumps(report), flush=True)
        return
    print(f"{program} ({flags.layout}): {flags.model}, batch {flags.batch_size}, {flags.replicas} replicas, "
          f"{flags.threads} threads, {parameters} parameters")
    print("steps in ms:", *(f"{1e3 * t:.4g}" for t in times[:20]), "..." if len(times) > 20 else "")
    print(f"median {1e3 * median:.4g} ms, {1 / median:.1f} steps/s, {flags.batch_size / median:.1f} examples/s, "
          f"loss {loss:.5f}")
    print(f"first step finished after {first:.3f} s, peak memory {report['peak_rss_bytes'] / 2**20:.1f} MiB")
