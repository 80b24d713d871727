#!/usr/bin/env python3
# Runs the example programs with few steps, and checks their results and errors.
# SPDX-License-Identifier: Apache-2.0
"""Usage: examples_test.py FOLDER_OF_PROGRAMS [CLASS[.test_NAME]]"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import counted_unittest  # noqa: E402

FOLDER = os.path.abspath(sys.argv.pop(1))
LICENSE = str(pathlib.Path(__file__).resolve().parents[2] / "LICENSE")
NETWORKS = ("fashion_mnist_custom_loop", "fashion_mnist_keras")
KEYS = {"strategy", "num_replicas", "cross_device_ops", "numerics", "steps", "examples_per_second", "final_loss",
        "losses", "losses_hex", "weights_hash", "slots_hash", "seconds_to_first_step"}


def run(program, *flags, code=0, **variables):
    """Runs a program with additional environment variables. Its exit code must be `code`."""
    if program in NETWORKS and "--test-examples" not in flags:  # limits evaluation, because few steps are trained
        flags += ("--test-examples", "500")
    result = subprocess.run([os.path.join(FOLDER, program), *flags], text=True, errors="backslashreplace", capture_output=True, timeout=600,
                            env={**os.environ, **variables})
    assert result.returncode == code, result.stdout + result.stderr
    return result


def run_with_metrics(program, *flags):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "metrics.json")
        result = run(program, *flags, "--metrics-json", path)
        with open(path, encoding="utf-8") as file:
            return json.load(file), result.stdout


class MetricsTestCase(unittest.TestCase):
    def check_metrics(self, metrics, steps):
        self.assertLessEqual(KEYS, set(metrics))
        self.assertEqual(metrics["steps"], steps)
        self.assertEqual(len(metrics["losses"]), steps)
        self.assertEqual(len(metrics["losses_hex"]), steps)
        for loss, text in zip(metrics["losses"], metrics["losses_hex"]):
            as_float = struct.unpack("f", struct.pack("f", float.fromhex(text)))[0]
            self.assertEqual(as_float, float.fromhex(text))  # a float32
            self.assertAlmostEqual(loss, as_float, places=5)
        self.assertEqual(metrics["final_loss"], metrics["losses"][-1])
        self.assertRegex(metrics["weights_hash"], "^[0-9a-f]{32}$")
        self.assertGreater(metrics["examples_per_second"], 0)


class Examples(MetricsTestCase):
    def test_networks_learn_within_forty_steps(self):
        for program in NETWORKS:
            with self.subTest(program):
                metrics, output = run_with_metrics(program, "--devices", "cpu:0-1", "--steps", "40")
                self.check_metrics(metrics, 40)
                self.assertEqual(metrics["strategy"], "mirrored")
                self.assertEqual(metrics["num_replicas"], 2)
                self.assertAlmostEqual(metrics["losses"][0], 2.3026, delta=0.3)  # ln(10), as in an untrained network
                self.assertLess(sum(metrics["losses"][-5:]) / 5, 0.75 * metrics["losses"][0])
                self.assertIn("cpu:1", output)  # lists its devices

    def test_estimator_matches_fit_and_custom_loop_bitwise(self):
        hashes = set()
        for replicas in ("1", "2", "4"):
            with tempfile.TemporaryDirectory() as folder:
                result = run("estimator", "--devices", "cpu:0", "--replicas", replicas, "--examples", "12",
                             "--checkpoint-dir", folder)
                hashes.add(re.search("weights +([0-9a-f]{32})", result.stdout).group(1))
        self.assertEqual(len(hashes), 3)  # 12, 6 and 3 steps do not suffice to converge to the same weights
        with tempfile.TemporaryDirectory() as folder:
            workers = run("../bin/tutti", "run", "-n", "2", "--", os.path.join(FOLDER, "estimator"), "--strategy",
                          "multi_worker_mirrored", "--devices", "cpu:0", "--examples", "12", "--checkpoint-dir", folder)
            found = re.findall("weights +([0-9a-f]{32})", workers.stdout)
            self.assertEqual(len(found), 2)
            self.assertEqual(len(hashes | set(found)), 3)  # two workers get the weights of two replicas

    def test_client_trains_an_estimator_on_remote_workers(self):
        program = os.path.join(FOLDER, "estimator_client")
        with tempfile.TemporaryDirectory() as folder:
            job = run("../bin/tutti", "run", "--chief", "--workers", "2", "--ps", "1", "--", program, "--model-dir",
                      folder, "--steps", "300")
            self.assertEqual(len(re.findall("loss .* after 300 steps", job.stdout)), 1, job.stdout)  # printed by the client
            self.assertIn("step_300", os.listdir(folder))

    def test_one_weird_trick_prints_time_and_bytes_of_each_scheme(self):
        result = run("one_weird_trick", "--steps", "10")
        replicas, batch, features, hidden, classes = 4, 128, 1024, 512, 4
        weights = (features + 1) * hidden + (hidden + 1) * classes
        self.assertIn(f"would exchange {2 * 4 * (replicas - 1) * weights} bytes of dense gradients", result.stdout)
        rows = re.findall(r"^(.*?) +(\d+) +[\d.]+ +(\d+) +(\d+)  ([\d.]+)$", result.stdout, re.MULTILINE)
        moved = 2 * 4 * (replicas - 1) * batch * (features + classes)
        self.assertEqual([row[:4] for row in rows],
                         [("all at once", "1", str(moved), str(moved // replicas)), ("one by one", "1", str(moved), str(moved)),
                          ("shares of all", "1", str(moved), str(moved // replicas)),
                          ("shares of all", "4", str(moved), str(moved // replicas))])
        losses = [float(row[4]) for row in rows]
        for loss in losses[:3]:
            self.assertAlmostEqual(loss, 1.33919, places=3)
        self.assertLess(losses[3], losses[0])  # four updates per step

    def check_trace(self, trace):
        """Checks that the spans of each thread are nested or disjoint. Returns all events except metadata."""
        self.assertEqual(trace["otherData"]["dropped_events"], 0)
        events = [e for e in trace["traceEvents"] if e["ph"] != "M"]
        named = {e["tid"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
        threads = {}
        for event in events:
            self.assertLessEqual({"name", "cat", "ph", "ts", "pid", "tid", "args"}, set(event))
            self.assertIn(event["ph"], "Xi")
            self.assertIn(event["tid"], named)
            if event["ph"] == "X":
                threads.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        for spans in threads.values():
            open_until = []
            for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
                while open_until and open_until[-1] <= begin + 0.002:
                    open_until.pop()
                self.assertTrue(not open_until or end <= open_until[-1] + 0.002, "spans overlap without being nested")
                open_until.append(end)
        return events

    def test_trace_shows_input_and_reductions_during_the_backward_pass(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            result = run("fashion_mnist_custom_loop", "--devices", "cpu:0-1", "--steps", "3", "--bytes-per-pack", "4096",
                         "--trace", path)
            with open(path, encoding="utf-8") as file:
                events = self.check_trace(json.load(file))
        steps = [e for e in events if e["name"] == "step"]
        numbers, with_gradients = sorted({e["args"]["step"] for e in steps}), 0
        self.assertEqual(len(steps), 2 * len(numbers))
        for number in numbers:
            spans = [e for e in steps if e["args"]["step"] == number]
            begin, end = min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)
            inside = [e for e in events if begin <= e["ts"] <= end]
            ready = [e for e in inside if e["name"] == "ready"]
            if not ready:
                continue  # a step of the evaluation
            with_gradients += 1
            self.assertGreater(max(e["args"]["bucket"] for e in ready), 1)
            self.assertTrue(all(e["args"]["label"] for e in ready))
            reductions = [e["ts"] for e in inside if e["name"] == "reduce" and e["args"]["bucket"] == 0]
            self.assertLess(min(reductions), max(e["ts"] for e in ready))
            for name in ("backward", "finish", "update", "updates_done"):
                self.assertGreaterEqual(len([e for e in inside if e["name"] == name]), 2, name)
        self.assertEqual(with_gradients, 3)
        self.assertGreaterEqual(len([e for e in events if e["name"] == "backward"]), 6)
        # A separate thread reads the next batches while replicas compute.
        reads = [e for e in events if e["name"] == "read" and e["cat"] == "input"]
        self.assertFalse({e["tid"] for e in reads} & {e["tid"] for e in steps})
        self.assertTrue(any(r["ts"] < s["ts"] + s["dur"] and s["ts"] < r["ts"] + r["dur"] for r in reads for s in steps))

    def test_gradients_are_compressed_and_checked_for_non_finite_values(self):
        plain, _ = run_with_metrics("fashion_mnist_custom_loop", "--devices", "cpu:0-1", "--steps", "30")
        for strategy in ("mirrored", "central_storage"):
            for compression in ("bfloat16", "float16"):
                with self.subTest(strategy, compression=compression):
                    metrics, _ = run_with_metrics("fashion_mnist_custom_loop", "--strategy", strategy, "--devices",
                                                  "cpu:0-1", "--steps", "30", "--compression", compression,
                                                  "--non-finite", "error")
                    self.assertNotEqual(metrics["losses_hex"], plain["losses_hex"])
                    self.assertAlmostEqual(sum(metrics["losses"][-5:]), sum(plain["losses"][-5:]), delta=0.25)
        searched, _ = run_with_metrics("fashion_mnist_custom_loop", "--devices", "cpu:0-1", "--steps", "30",
                                       "--non-finite", "skip")
        self.assertEqual(searched["weights_hash"], plain["weights_hash"])

    def test_linear_regression_finds_the_line(self):
        metrics, output = run_with_metrics("linear_regression")
        self.check_metrics(metrics, len(metrics["losses"]))
        self.assertIn("line", output)

    def test_checkpoint_size_is_independent_of_step_count(self):
        """Checkpoints contain the report. Their size does not depend on the number of steps, unless losses are requested."""
        for steps in (4, 120):
            for flags, kept in (([], 0), (["--metrics-json"], 8 * steps)):
                with self.subTest(steps=steps, kept=kept), tempfile.TemporaryDirectory() as folder:
                    metrics = [*flags, os.path.join(folder, "metrics.json")] if flags else []
                    result = run("fashion_mnist_custom_loop", "--devices", "cpu:0", "--train-examples", "16",
                                 "--batch-size", "4", "--steps", str(steps), "--epochs", "100", "--checkpoint-dir",
                                 os.path.join(folder, "saved"), *metrics)
                    with open(os.path.join(folder, "saved", f"step_{steps}", "state.json"), encoding="utf-8") as file:
                        record = json.load(file)["states"]["record"]
                    self.assertEqual(record["steps"], steps)
                    self.assertEqual(set(record), {"steps", "loss_bits"})
                    self.assertEqual(len(record["loss_bits"]), kept)

    def test_gpt_resumes_from_its_checkpoints(self):
        """Checks that two epochs in one run give the same weights as two runs of one epoch."""
        flags = ["--text", os.path.join(FOLDER, "../../LICENSE"), "--context", "32", "--layers", "1", "--heads", "2", "--features", "16",
                 "--batch-size", "32", "--tokens", "4", "--devices", "cpu:0"]
        whole, _ = run_with_metrics("gpt/gpt", *flags, "--epochs", "2")
        with tempfile.TemporaryDirectory() as folder:
            saved = ["--checkpoint-dir", os.path.join(folder, "saved")]
            self.assertIn("saved", run("gpt/gpt", *flags, *saved, "--epochs", "1", "--resume", code=1).stderr)
            first, _ = run_with_metrics("gpt/gpt", *flags, *saved, "--epochs", "1")
            resumed, _ = run_with_metrics("gpt/gpt", *flags, *saved, "--epochs", "2", "--resume")
        self.assertNotEqual(first["weights_hash"], whole["weights_hash"])
        self.assertEqual(resumed["weights_hash"], whole["weights_hash"])

    def test_gpt_on_mesh_is_bit_identical_across_processes_and_resume(self):
        """Checks that bits depend only on the blocks, and not on the mesh, the number of processes, or a restart on another mesh."""
        flags = ["--text", os.path.join(FOLDER, "../../LICENSE"), "--context", "16", "--layers", "1", "--heads", "2", "--features", "16",
                 "--batch-size", "8", "--tokens", "4", "--blocks", "data=2,model=2"]
        gpt = os.path.join(FOLDER, "gpt/gpt")

        def hash_of(mesh, *launcher, length=("--steps", "6"), more=()):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "metrics.json")
                run(*launcher, gpt, *flags, "--mesh", mesh, *length, "--metrics-json", path, *more)
                with open(path, encoding="utf-8") as file:
                    return json.load(file)["weights_hash"]

        expected = hash_of("data=2,model=2")
        for mesh, *launcher in (["data=1,model=1"], ["data=2,model=1"], ["data=2,model=2", "../bin/tutti", "run", "-n", "2", "--"],
                                ["data=2,model=2", "../bin/tutti", "run", "-n", "4", "--"], ["data=1,model=2", "../bin/tutti", "run", "-n", "2", "--"]):
            with self.subTest(mesh=mesh, launcher=launcher):
                self.assertEqual(hash_of(mesh, *launcher), expected)
        with tempfile.TemporaryDirectory() as folder:
            saved = ["--checkpoint-dir", os.path.join(folder, "saved")]
            whole = hash_of("data=2,model=2", length=("--epochs", "2"))
            self.assertNotEqual(hash_of("data=2,model=1", length=("--epochs", "1"), more=saved), whole)
            self.assertEqual(hash_of("data=1,model=2", length=("--epochs", "2"), more=["--resume", *saved]), whole)

    def test_each_task_writes_its_own_trace(self):
        flags = ["run", "-n", "2", "--", os.path.join(FOLDER, "linear_regression"), "--strategy", "multi_worker_mirrored", "--devices",
                 "cpu:0"]
        for by_flag in (False, True):
            with self.subTest(by_flag=by_flag), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "trace.json")
                words, variables = (["--trace", path], {}) if by_flag else ([], {"TUTTI_TRACE": path})
                run("../bin/tutti", *flags, *words, **variables)
                self.assertEqual(sorted(os.listdir(folder)), ["trace.worker-0.json", "trace.worker-1.json"])
                for rank in (0, 1):
                    with open(os.path.join(folder, f"trace.worker-{rank}.json"), encoding="utf-8") as file:
                        events = json.load(file)["traceEvents"]
                    self.assertEqual({event["pid"] for event in events}, {rank})
                    self.assertTrue(any(event["name"] == "update" for event in events))

    def test_gpt_too_large_for_mirrored_trains_fully_sharded_and_on_mesh(self):
        """Mirrored weights of 7 MB with Adam take 28 MB on each device; in four shards, they take a quarter of this memory."""
        flags = ["--text", LICENSE, "--context", "16", "--layers", "4", "--heads", "4", "--features", "192",
                 "--batch-size", "8", "--steps", "3", "--epochs", "1", "--tokens", "4", "--devices", "cpu:0-3", "--max-memory", "24"]
        mirrored = run("gpt/gpt", *flags, "--strategy", "mirrored", code=1)
        self.assertRegex(mirrored.stderr, r"replica \d, step \d: .*cpu:\d: no memory for \d+ bytes; \d+ in use, 0 cached, limit 25165824")
        for sharded in (["--strategy", "fully_sharded"], ["--mesh", "data=1,model=4"]):
            with self.subTest(sharded=sharded):
                self.assertRegex(run("gpt/gpt", *flags, *sharded).stdout, r"speed +\d+ tokens/s")

    def test_swap_strategy_results_are_bit_identical(self):
        result = run("swap_strategy", "--steps", "10")
        has_xla = "XLA has no devices here" not in result.stdout
        self.assertRegex(result.stdout, "the same bits everywhere but under XLA" if has_xla else "the same bits everywhere\n")
        self.assertRegex(result.stdout, r"tpu +xla:0-3 +(XLA has no devices here: .*; |stablehlo.all_reduce +[0-9.]+ +differ by )")

    def test_single_worker_update_modes_are_bit_identical(self):
        hashes = set()
        for mode in ("sync", "async", "sync_replicas"):
            metrics, _ = run_with_metrics("linear_regression", "--strategy", "parameter_server", "--devices", "cpu:0",
                                          "--update-mode", mode)
            hashes.add(metrics["weights_hash"])
        self.assertEqual(len(hashes), 1)

    def test_model_parallel_trains_model_too_large_for_one_device(self):
        result = run("model_parallel", "--steps", "5")
        self.assertRegex(result.stdout, r"data parallel +refused: .*cpu:[01]: no memory for \d+ bytes; \d+ in use, "
                                        r"\d+ cached, limit 5734400; try a smaller batch, or place parts of the model")
        rows = {line[:18].strip(): line[18:].split() for line in result.stdout.splitlines()}
        for way in ("split by layers", "cut within layers"):
            self.assertAlmostEqual(float(rows[way][0]), float(rows["one device"][0]), delta=1e-4)
            for peak in rows[way][1:3]:
                self.assertLess(int(peak), int(rows["one device"][3]))
        self.assertIn("the same model", result.stdout)
        roomy = run("model_parallel", "--steps", "2", "--memory-kib", "100000", code=1)  # nothing is refused
        self.assertRegex(roomy.stdout, r"data parallel +\d\.\d+ ")

    def test_single_process_examples_learn(self):
        for program, flags, said in (
                ("parameter_server_custom_loop", ["--embedding", "64", "--epochs", "3"], "Finished epoch 2, accuracy is "),
                ("parameter_server_fit", ["--epochs", "2"], "in the first epoch"),
                ("in_graph_trainer", ["--steps", "20"], r"step 20 loss [01]\."),
                ("session", ["--steps", "20"], "after 20 steps: [0-9a-f]{32}"),
                ("between_graph_trainer", ["--train_steps", "150", "--min-accuracy", "0.6"], r"result +global step 150, test accuracy 0\.[6-9]"),
                ("fashion_mnist_custom_loop", ["--strategy", "one_device", "--devices", "cpu:0", "--steps", "3", "--batch-size", "7"], "one_device, 1 replica"),
                ("fashion_mnist_keras", ["--strategy", "one_device", "--devices", "cpu:0", "--steps", "3", "--batch-size", "7"], "one_device, 1 replica")):
            with self.subTest(program):
                self.assertRegex(run(program, *flags).stdout, said)

    def test_errors_name_the_flag(self):
        line = [("linear_regression", flags, 2, flags[-1] if flags[0] == "--devices" else flags[0]) for flags in (
            ["--strategy", "magic"], ["--devices", "gpu:0"], ["--devices", "cpu:0,cpu:0"], ["--cross-device-ops", "telepathy"],
            ["--batch-size", "0"], ["--batch-size", "x"], ["--resume"], ["--no-such-flag"], ["--plugin", "./nowhere.so"])]
        asynchronous = [(program, ["--strategy", "mirrored", "--update-mode", "async"], 2,
                         "--update-mode async: steps of --strategy mirrored are synchronous") for program in (*NETWORKS, "linear_regression")]
        for program, flags, code, said in (
                *line, *asynchronous,
                ("estimator", [], 2, "--checkpoint-dir: expected a folder for the model's checkpoints, got none"),
                ("gpt/gpt", [], 1, "expected --text to train on, or --load"), ("gpt/gpt", ["--text", "/nowhere"], 1, "cannot read /nowhere"),
                ("gpt/gpt", ["--text", LICENSE, "--context", "100000"], 1, "--text: expected more than 100000 tokens")):
            with self.subTest(program, flags=flags):
                self.assertIn(said, run(program, *flags, code=code).stderr)

    def test_missing_data_error_names_folder_and_package(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("fashion_mnist_custom_loop", "--data-dir", folder, code=1)
        self.assertIn(folder, result.stderr)
        self.assertIn("dataset-fashion-mnist", result.stderr)


class Learning(MetricsTestCase):
    """Trains networks and checks that they reach an accuracy or a loss."""

    def test_networks_learn_in_16_bits(self):
        for program in NETWORKS:
            for policy in ("mixed_bfloat16", "mixed_float16"):
                with self.subTest(program, policy=policy):
                    metrics, _ = run_with_metrics(program, "--devices", "cpu:0-1", "--steps", "30", "--dtype-policy",
                                                  policy)
                    self.check_metrics(metrics, 30)
                    self.assertLess(sum(metrics["losses"][-5:]) / 5, 0.75 * metrics["losses"][0])

    def test_tutorial_networks_reach_expected_accuracy(self):
        # Each limit is at least five percentage points below the measured accuracy.
        for network, flags, floor in (("basic_classification", ["--epochs", "1"], 0.80),
                                      ("quickstart", ["--steps", "400"], 0.74),
                                      ("simple_convnet", ["--steps", "60"], 0.65),
                                      ("distributed_keras", ["--steps", "60"], 0.68),
                                      ("custom_training", ["--steps", "60"], 0.60),
                                      ("working_with_rnns", ["--steps", "200"], 0.50)):
            with self.subTest(network):
                result = run("tutorial_networks", "--network", network, "--min-accuracy", str(floor), *flags)

    def test_gpt_learns_license_text_and_generates(self):
        """Trains a GPT-2 on bytes and a Llama on byte pairs. A model that is saved and loaded generates the same text."""
        licence = next(path for path in ("/usr/share/common-licenses/GPL-3", LICENSE) if os.path.exists(path))
        small = ["--text", licence, "--context", "32", "--layers", "2", "--heads", "2", "--features", "32", "--batch-size", "16",
                 "--learning-rate", "0.01", "--steps", "60", "--epochs", "9", "--tokens", "40", "--prompt", "The ", "--devices",
                 "cpu:0-1"]
        hashes = {}
        for layout, vocabulary, strategy in (("gpt2", "256", "mirrored"), ("gpt2", "256", "central_storage"), ("llama", "400", "mirrored")):
            with self.subTest(layout=layout, strategy=strategy), tempfile.TemporaryDirectory() as folder:
                metrics, output = run_with_metrics("gpt/gpt", *small, "--layout", layout, "--vocabulary", vocabulary, "--strategy", strategy,
                                                   "--save", folder)
                self.check_metrics(metrics, 60)
                self.assertLess(sum(metrics["losses"][-5:]) / 5, 0.75 * metrics["losses"][0])
                self.assertRegex(output, rf"text +\d+ bytes, \d+ tokens of {vocabulary}\n")
                text = output.split("----\n")[1]
                self.assertTrue(text.startswith("The "), text)
                loaded = run("gpt/gpt", "--load", folder, "--tokens", "40", "--prompt", "The ")
                self.assertEqual(loaded.stdout.split("----\n")[1], text)
                hashes[layout, strategy] = metrics["weights_hash"]
        self.assertEqual(hashes["gpt2", "mirrored"], hashes["gpt2", "central_storage"])


class Tutorials(unittest.TestCase):
    """Runs the tutorials of the distributed training guides as programs with few steps (see docs/tutorials.md)."""

    def check_losses(self, metrics, strategy, replicas, steps):
        self.assertEqual((metrics["strategy"], metrics["num_replicas"], metrics["steps"]), (strategy, replicas, steps))
        self.assertLess(sum(metrics["losses"][-3:]) / 3, 0.95 * metrics["losses"][0])

    def test_custom_loop_learns_with_mirrored_strategy(self):
        metrics, _ = run_with_metrics("fashion_mnist_custom_loop", "--devices", "cpu:0-1", "--steps", "15")
        self.check_losses(metrics, "mirrored", 2, 15)

    def test_custom_loop_learns_with_several_workers(self):
        loop = [os.path.join(FOLDER, "fashion_mnist_custom_loop"), "--devices", "cpu:0", "--steps", "15", "--test-examples", "500"]
        metrics, _ = run_with_metrics("../bin/tutti", "run", "-n", "2", "--", *loop, "--strategy", "multi_worker_mirrored")
        self.check_losses(metrics, "multi_worker_mirrored", 2, 15)

    def test_custom_loop_learns_with_parameter_servers(self):
        program = os.path.join(FOLDER, "parameter_server_custom_loop")
        result = run("../bin/tutti", "run", "--chief", "--workers", "2", "--ps", "1", "--", program, "--epochs", "5", "--steps-per-epoch", "5")
        said = result.stdout + result.stderr
        epochs = re.findall(r"Finished epoch (\d), accuracy is ([01]\.\d+)", said)
        self.assertEqual([epoch for epoch, _ in epochs], ["0", "1", "2", "3", "4"], said)
        # In 3 of 7 examples the answer is yes, so always answering no is right in 57 % of them.
        self.assertGreater(float(epochs[-1][1]), 0.75, said)
        self.assertGreater(float(re.search(r"Evaluation accuracy: ([01]\.\d+)", said)[1]), 0.75, said)

    def test_model_garden_network_learns(self):
        """Trains the guide's residual network on two replicas."""
        result = run("../bin/train_resnet", "--network", "resnet20", "--devices", "cpu:0-1", "--batch-size", "8", "--image-size", "16",
                     "--batches", "1", "--learning-rate", "0.02", "--losses", "--steps", "6")
        losses = json.loads(result.stdout.splitlines()[-1])["losses"]
        self.assertEqual(len(losses), 6, result.stdout)
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    counted_unittest.main(apart=["Learning", "Tutorials"])
