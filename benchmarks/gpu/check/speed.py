# Measurements and their goals: bandwidth, all_reduce, steps, and ResNet-50 compared with PyTorch.
# SPDX-License-Identifier: Apache-2.0
import statistics

from rows import SPEED, Step, failed, goal, skipped

POLICIES = ("mixed_bfloat16", "tf32", "float32")
# Ratios of tutti's speed to that of PyTorch in each mode, as goals.
PEERS = (("eager", 1.3), ("compile", 1.0))


def bench(place, runner, *words, virtual_gpus=1):
    """Runs gpu_bench. Returns (report, None), or (None, a row with the error)."""
    outcome = runner.run([place.program("gpu_bench"), *words], place.environment(virtual_gpus))
    report = outcome.last_json()
    if not outcome.ok() or report is None:
        row = failed(outcome.why(), outcome.tail())
        row.kind = SPEED
        return None, row
    return report, None


def sizes(place, elements, rounds=5):
    return ["--elements", 20_000 if place.tiny else elements, "--iterations", 2 if place.tiny else 20,
            "--rounds", 2 if place.tiny else rounds]


def copy(place, runner):
    report, problem = bench(place, runner, "copy", "--devices", place.gpu, *sizes(place, 256_000_000))
    if problem:
        return problem
    place.copy_rate = report["bytes_per_second"]
    return goal(f"{place.copy_rate / 1e9:.0f} GB/s read and written", "", None, report=report)


def update(optimizer):
    def run(place, runner):
        if not getattr(place, "copy_rate", None):
            copy(place, runner)
        if not getattr(place, "copy_rate", None):
            return skipped("there is no copy bandwidth to compare with (see the row copy)")
        report, problem = bench(place, runner, "update", "--devices", place.gpu, "--optimizer", optimizer,
                                *sizes(place, 204_800_000))
        if problem:
            return problem
        share = report["bytes_per_second"] / place.copy_rate
        return goal(f"{report['bytes_per_second'] / 1e9:.0f} GB/s, {100 * share:.0f} % of copying ({report['variables']} variables)",
                    "85 %", None if place.tiny else share >= 0.85, share=share, report=report)
    return run


def all_reduce(name, count):
    def run(place, runner):
        if place.flags.on_cpu and name == "nccl":
            return skipped("NCCL needs GPUs")
        where = place.logical(count) if count else place.all_gpus()
        report, problem = bench(place, runner, "all_reduce", "--devices", where, "--ops", name, *sizes(place, 16_000_000),
                                virtual_gpus=max(count, 1))
        if problem:
            return problem
        return goal(f"{report['bytes'] / 1e6:.3g} MB in {1e6 * report['seconds']['median']:.0f} us, algbw {report['algbw'] / 1e9:.1f}, "
                    f"busbw {report['busbw'] / 1e9:.1f} GB/s, {report['ranks']} ranks", "", None, report=report)
    return run


def empty_step(execution, count):
    def run(place, runner):
        report, problem = bench(place, runner, "empty_step", "--execution", execution, "--devices", place.logical(count),
                                "--iterations", 20 if place.tiny else 2000, "--rounds", 3 if place.tiny else 7,
                                virtual_gpus=count)
        if problem:
            return problem
        wanted = execution == "captured"
        return goal(f"{report['microseconds']:.1f} us, {count} replicas", "20 us" if wanted else "",
                    report["microseconds"] < 20 if wanted and not place.tiny else None, report=report)
    return run


def torch_version(place, runner):
    """Returns (version of PyTorch, ""), or ("", the reason why there is none)."""
    if place.torch is None:
        code = "import torch; print(torch.__version__, torch.cuda.is_available())"
        outcome = runner.run([place.flags.python, "-c", code], limit=90)
        words = outcome.output.split()
        if not outcome.ok() or len(words) != 2:
            place.torch = ("", f"no PyTorch to compare with: {outcome.why()}")
        elif words[1] != "True" and not place.tiny:
            place.torch = ("", f"torch {words[0]} sees no GPU")
        else:
            place.torch = (words[0], "")
    return place.torch


class Contender:
    """Program that trains ResNet-50 and runs a round of steps on request."""

    def __init__(self, name, place, runner, argv, env=None):
        self.name, self.rates, self.problem = name, [], ""
        self.talk = runner.talk(argv, env)
        limit = runner.left(150)
        self.ready = self.talk.event("ready", limit)
        if self.ready is None:
            self.problem = self.talk.problem

    def round(self, steps, seconds):
        if self.problem:
            return
        self.talk.ask(str(steps))
        event = self.talk.event("round", seconds)
        if event is None:
            self.problem = self.talk.problem
        else:
            self.rates.append(event["images_per_second"])


def sized(place, policy):
    """Returns (network, image size, first batch size, steps per round, number of rounds)."""
    if place.tiny:
        return "resnet8", 8, 4, 1, 2
    # The memory of all contenders is allocated at the same time.
    batch = 256 if place.gpu_bytes >= 60e9 else 128 if place.gpu_bytes >= 30e9 else 64
    return "resnet50", 224, batch if policy.startswith("mixed") else batch // 2, 10, 3 if place.flags.quick else 5


def tutti_contender(place, runner, policy, network, image, batch):
    """Starts tutti with measured convolution plans, as torch does with its flag cudnn.benchmark."""
    argv = [place.program("train_resnet"), "--on-demand", "--network", network, "--image-size", image, "--batch-size", batch,
            "--devices", place.gpu, "--warmup", 2 if place.tiny else 8, "--execution", "captured",
            "--policy", "float32" if policy == "tf32" else policy]
    tuned = {"TUTTI_TF32": "1" if policy == "tf32" else "0", "TUTTI_CUDNN_TUNE": "1", "TUTTI_CUDNN_DETERMINISTIC": "0"}
    return Contender("tutti", place, runner, argv, place.environment(**tuned))


def torch_contender(place, runner, policy, mode, network, image, batch):
    argv = [place.flags.python, place.peer(), "--on-demand", "--network", network, "--image-size", image, "--batch-size", batch,
            "--device", "cpu" if place.tiny else "cuda:0", "--mode", mode, "--warmup", 1 if place.tiny else 6,
            "--policy", policy]
    return Contender(f"torch {mode}", place, runner, argv)


def out_of_memory(problem):
    return "resource_exhausted" in problem.lower() or "out of memory" in problem.lower()


def resnet50(policy):
    def run(place, runner):
        network, image, batch, round_steps, rounds = sized(place, policy)
        ours = tutti_contender(place, runner, policy, network, image, batch)
        while ours.problem and out_of_memory(ours.problem) and batch > 32:
            batch //= 2
            ours = tutti_contender(place, runner, policy, network, image, batch)
        name = f"{network} {policy}"
        if ours.problem:
            return named(failed(f"tutti: {ours.problem}"), name)
        version, why = torch_version(place, runner)
        peers = []
        for mode, factor in PEERS if version else ():
            if place.tiny and mode == "compile":
                continue
            if runner.left() < 30 and not place.tiny:
                contender, reason = None, "no time left"
            else:
                contender = torch_contender(place, runner, policy, mode, network, image, batch)
                reason = contender.problem
            peers.append((mode, factor, contender, reason))
        contenders = [ours] + [peer[2] for peer in peers if peer[2] is not None]
        for _ in range(rounds):  # alternating, so that a change of clock frequency affects all contenders
            for contender in contenders:
                contender.round(round_steps, max(1.0, min(runner.left(), 60)))
        for contender in contenders:
            contender.talk.close()
        if ours.problem:
            return named(failed(f"tutti: {ours.problem}"), name)
        rate = statistics.median(ours.rates)
        found = [named(goal(f"{rate:.0f} images/s, batch {batch}", "", None, rates=ours.rates, ready=ours.ready), name)]
        if not version:
            found.append(named(skipped(why), f"{name} / torch"))
        for mode, factor, contender, reason in peers:
            found.append(named(beside(place, ours, contender, factor, reason), f"{name} / torch {mode}"))
        return found
    return run


def beside(place, ours, peer, factor, reason):
    if peer is None or peer.problem or not peer.rates:
        return skipped(f"torch: {reason or (peer.problem if peer else '')}")
    ratios = [mine / theirs for mine, theirs in zip(ours.rates, peer.rates)]
    ratio = statistics.median(ratios)
    return goal(f"{ratio:.2f}x ({min(ratios):.2f} .. {max(ratios):.2f}) of {statistics.median(peer.rates):.0f} images/s, "
                f"{peer.ready['program']}", f"{factor:g}x", None if place.tiny else ratio >= factor, ratios=ratios,
                rates=peer.rates, ready=peer.ready)


def named(row, name):
    row.name, row.kind = name, SPEED
    return row


def steps():
    return [
        Step("copy", SPEED, copy, 40),
        Step("update sgd", SPEED, update("sgd"), 40),
        Step("update adam", SPEED, update("adam"), 40),
        Step("empty step eager", SPEED, empty_step("eager", 4), 30),
        Step("empty step captured", SPEED, empty_step("captured", 4), 30),
        Step("all_reduce nccl", SPEED, all_reduce("nccl", 0), 40),
        Step("all_reduce canonical x4", SPEED, all_reduce("canonical", 4), 40),
        Step("all_reduce hierarchical_copy x4", SPEED, all_reduce("hierarchical_copy", 4), 40, slow=True),
        Step("all_reduce ring x4", SPEED, all_reduce("ring", 4), 40, slow=True),
        *(Step(f"resnet50 {policy}", SPEED, resnet50(policy), 200, slow=policy != "mixed_bfloat16") for policy in POLICIES),
    ]
