# Checks of correctness: devices, kernels, gradients, optimizers, reductions, loss curves, sanitizers.
# SPDX-License-Identifier: Apache-2.0
import glob
import json
import re
import shutil
import statistics

from rows import CORRECTNESS, Step, failed, passed, skipped

SMALL = ("--size", "small")
# tutti's kernels that use shared memory, or read values that other kernels wrote.
SANITIZED = "reduce_sum,reduce_max,softmax,log_softmax,transpose,gather,scatter_rows,top_k,group_norm,attention,attention_grad,cumulative_sum,dropout"


def explained(outcome, what=""):
    return failed((what + ": " if what else "") + outcome.why(), outcome.tail())


def devices(place, runner):
    outcome = runner.run([place.program("tutti"), "devices", "--json"], place.environment())
    report = parsed(outcome)
    if not outcome.ok() or report is None:
        return explained(outcome)
    if place.flags.on_cpu:
        return passed(f"{report['devices'][0]['model']}, {report['devices'][0]['cores']} cores")
    gpus = [device for device in report["devices"] if device.get("type") == "gpu"]
    place.num_gpus = len(gpus)
    place.gpu_bytes = gpus[0].get("total_bytes", place.gpu_bytes) if gpus else 0
    if not gpus:
        return failed("tutti sees no GPU: " + str(report.get("gpu", {}).get("reason", "no reason given")), outcome.output)
    if bool(report["gpu"].get("simulated")) != place.simulated:
        return failed("expected real GPUs, got simulated ones" if not place.simulated else "--simulate: expected simulated GPUs, got real ones", outcome.output)
    return passed(f"{len(gpus)} x {gpus[0].get('name', 'GPU')}: {report['gpu'].get('description', '')}", report=report)


def parsed(outcome):
    try:
        return json.loads(outcome.output)
    except ValueError:
        return None


def doctor(place, runner):
    outcome = runner.run([place.program("tutti"), "doctor"], place.environment())
    if not outcome.ok():
        return explained(outcome)
    return passed(outcome.output.strip().splitlines()[-1])


def device_check(place, runner, *words, virtual_gpus=1):
    """Runs device_check; returns its outcome and its report."""
    argv = [place.program("device_check"), *words, "--device", place.gpu, "--json"]
    outcome = runner.run(argv, place.environment(virtual_gpus))
    return outcome, outcome.last_json()


def compared(check, *words):
    def run(place, runner):
        size = ()
        if check == "ops" and (place.flags.quick or place.tiny):
            size = (*SMALL, "--every", 8 if place.tiny else 1)
        outcome, report = device_check(place, runner, check, *size, *words)
        if report is None or outcome.timed_out:
            return explained(outcome)
        text = f"{report['agree']} of {report['compared']} agree ({report['detail']})"
        if report["without_kernel"]:
            text += f", {len(report['without_kernel'])} without kernel"
        if not outcome.ok() or not report["passed"]:
            first = (report["failures"] + [f"not tried: {name}" for name in report["not_tried"]] + [outcome.why()])[0]
            return failed(f"{text}; {first}", "\n".join(report["failures"] + report["not_tried"]), report=report)
        return passed(text, report=report)
    return run


def finds_errors(place, runner):
    """Checks that device_check can fail: it must find an element that is changed on purpose."""
    for words in (("ops", "--only", "add", "--spoil", "add", *SMALL), ("gradients", "--only", "matmul", "--spoil", "matmul"),
                  ("optimizers", "--only", "adam", "--spoil", "adam")):
        outcome, report = device_check(place, runner, *words)
        if report is None or outcome.code != 1 or not report["failures"]:
            return failed(f"device_check {' '.join(words)} did not find the error planted on purpose", outcome.tail())
    return passed("changed elements were found in ops, gradients and optimizers")


def conform(name, count):
    """Returns a check that runs the conformance kit on `count` logical devices of one GPU, or on all GPUs if `count` is 0."""
    def run(place, runner):
        if place.flags.on_cpu:
            argv, env = [place.program("tutti"), "conform", name, "--shape", "local"], place.environment()
        else:
            where = place.logical(count) if count else place.all_gpus()
            argv = [place.program("tutti"), "conform", name, "--devices", where]
            env = place.environment(virtual_gpus=max(count, 1))
        sample = 60 if place.tiny else 400 if place.flags.quick else 1500
        budget = 3 if place.tiny else max(2, int(runner.left() - 5))
        outcome = runner.run([*argv, "--sample", sample, "--budget", budget, "--json"], env)
        report = parsed(outcome)
        if report is None or outcome.timed_out:
            return explained(outcome)
        total = report["total"]
        text = f"{total['passed']} cases pass, {total['failed']} fail, {total['skipped']} skipped"
        if not outcome.ok() or total["failed"] or not total["passed"]:
            return failed(text, "\n".join(str(failure) for failure in report.get("failures", []))[:4000] + outcome.errors)
        return passed(text, total=total)
    return run


def nccl(place, runner):
    if place.flags.on_cpu:
        return skipped("NCCL needs GPUs")
    return conform("nccl", 0)(place, runner)


def gpu_tests(place, runner):
    """Runs the library's tests on GPUs (tests/gpu). The tests need two GPUs; a single GPU is split into two virtual ones."""
    program = place.program("test_gpu")
    if place.tiny:
        return skipped("on simulated GPUs these tests are part of the test suite")
    if not program.exists():
        return skipped("this build has no bin/test_gpu (it needs GoogleTest and -DTUTTI_BUILD_TESTS=ON)")
    outcome = runner.run([program, "--gtest_brief=1"],
                         place.environment(virtual_gpus=2 if place.num_gpus == 1 else 1))
    ran = re.search(r"\[==========\] (\d+) tests? from", outcome.output)
    broken = list(dict.fromkeys(line.split("(")[0].split()[3] for line in outcome.output.splitlines()
                                if line.startswith("[  FAILED  ]") and "." in line))
    if not outcome.ok() or not ran or ran.group(1) == "0":
        return failed(f"{len(broken)} tests fail: {', '.join(broken)}" if broken else outcome.why(), outcome.tail(80))
    return passed(f"{ran.group(1)} tests pass")


def losses_of(place, runner, devices_, policy, virtual_gpus=1, replicas=0):
    network, batch, steps = ("resnet8", 4, 4) if place.tiny else ("resnet20", 64, 12 if place.flags.quick else 24)
    argv = [place.program("train_resnet"), "--losses", "--network", network, "--devices", devices_, "--policy", policy,
            "--batch-size", batch, "--batches", min(steps, 8), "--steps", steps]
    if place.tiny:
        argv += ["--image-size", 8]
    if replicas:
        argv += ["--replicas", replicas]
    if place.flags.data_dir and not place.tiny:
        argv += ["--data-dir", place.flags.data_dir]
    outcome = runner.run(argv, place.environment(virtual_gpus))
    report = outcome.last_json()
    if not outcome.ok() or report is None or report.get("event") != "losses":
        return None, explained(outcome, f"{policy} on {devices_}")
    return report["losses"], None


def curves_differ(actual, expected, early, late):
    """Returns "" if two loss curves agree, otherwise the difference. Rounding errors grow with the steps: the first third
    must agree within `early`, and the mean of the last third within `late`."""
    if len(actual) != len(expected) or not all(isinstance(loss, (int, float)) for loss in actual):
        return f"expected {len(expected)} finite losses, got {actual}"
    third = max(1, len(expected) // 3)
    for step in range(third):
        if not abs(actual[step] - expected[step]) <= early * max(1.0, abs(expected[step])):
            return f"step {step}: loss {actual[step]:.5f}, on the CPU {expected[step]:.5f} (tolerance {early:g})"
    ends = statistics.fmean(actual[-third:]), statistics.fmean(expected[-third:])
    if not abs(ends[0] - ends[1]) <= late * max(0.5, abs(ends[1])):
        return f"mean of the last {third} losses {ends[0]:.4f}, on the CPU {ends[1]:.4f} (tolerance {late:g})"
    return ""


def loss_curve(policy, early, late, replicas=0):
    """Returns a check that compares losses with float32 on the CPU, for any policy. Both runs use the same number of replicas,
    because batch normalisation depends on each replica's part of the batch."""
    def run(place, runner):
        curves = place.__dict__.setdefault("cpu_losses", {})
        if replicas not in curves:
            where = f"cpu:0-{replicas - 1}" if replicas else "cpu:0"
            expected, problem = losses_of(place, runner, where, "float32", replicas=replicas)
            if problem:
                return problem
            curves[replicas] = expected
        expected = curves[replicas]
        devices_ = place.logical(replicas) if replicas else place.gpu
        actual, problem = losses_of(place, runner, devices_, policy, virtual_gpus=max(1, replicas), replicas=replicas)
        if problem:
            return problem
        found = curves_differ(actual, expected, early, late)
        numbers = {"device": actual, "cpu": expected}
        if found:
            return failed(found, f"device: {actual}\ncpu:    {expected}", **numbers)
        return passed(f"{len(actual)} steps: loss {actual[0]:.4f} to {actual[-1]:.4f}, on the CPU {expected[-1]:.4f}",
                      f"within {early:g}, {late:g}", **numbers)
    return run


def sanitizer(tool):
    def run(place, runner):
        if place.tiny:
            return skipped("needs a GPU")
        path = shutil.which("compute-sanitizer") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))), None)
        if not path:
            return skipped("compute-sanitizer is not installed")
        argv = [path, "--tool", tool, "--error-exitcode", "86", "--print-limit", "20", place.program("device_check"), "ops",
                *SMALL, "--device", place.gpu, "--json", "--every", 8]
        if tool != "memcheck":  # many times slower
            argv += ["--only", SANITIZED]
        outcome = runner.run(argv, place.environment())
        summary = next((line for line in reversed(outcome.output.splitlines()) if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line), "")
        if outcome.timed_out:
            return skipped(f"{tool}: timed out after {outcome.seconds:.0f} s")
        if outcome.code != 0 or not summary:
            return failed(f"{tool}: {summary.strip('= ') or outcome.why()}", outcome.tail(60))
        return passed(summary.strip("= "))
    return run


def steps():
    conformances = [Step(f"conform {name} x{count}", CORRECTNESS, conform(name, count), 40)
                    for name, count in (("canonical", 4), ("hierarchical_copy", 4), ("ring", 4))]
    return [
        Step("devices", CORRECTNESS, devices, 60),
        Step("doctor", CORRECTNESS, doctor, 60),
        Step("kernels", CORRECTNESS, compared("ops"), 120),
        Step("gradients", CORRECTNESS, compared("gradients"), 60),
        Step("optimizers", CORRECTNESS, compared("optimizers"), 60),
        Step("finds errors", CORRECTNESS, finds_errors, 60),
        Step("gpu tests", CORRECTNESS, gpu_tests, 90, required=False),
        Step("conform nccl", CORRECTNESS, nccl, 40),
        *conformances,
        Step("losses float32", CORRECTNESS, loss_curve("float32", 0.01, 0.1), 90),
        Step("losses mixed_bfloat16", CORRECTNESS, loss_curve("mixed_bfloat16", 0.06, 0.2), 60),
        Step("losses mixed_float16", CORRECTNESS, loss_curve("mixed_float16", 0.04, 0.2), 60, slow=True),
        Step("losses float32 x4", CORRECTNESS, loss_curve("float32", 0.02, 0.15, replicas=4), 60),
        *(Step(tool, CORRECTNESS, sanitizer(tool), 60, slow=True, required=False)
          for tool in ("memcheck", "racecheck", "initcheck")),
    ]
