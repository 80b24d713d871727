// Implements the evaluation of checkpoints.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "examples/cifar10/cifar10_input.h"
#include "examples/cifar10/step_log.h"
#include "examples/cifar10/synthetic_images.h"
#include "examples/cifar10/tower_trainer.h"
#include "examples/common/example_options.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/core/clock.h"
#include "tutti/core/executor.h"
#include "tutti/model/log_files.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples::cifar10 {
namespace {

constexpr int kMaxCpuDevices = 16;

/// Returns all GPUs or, if there are none, a virtual CPU device per core (at most 16).
std::vector<Device> evaluation_devices() {
  std::vector<Device> devices = default_devices();
  if (devices.front().type == DeviceType::kGpu) return devices;
  const int count = std::min(num_hardware_threads(), kMaxCpuDevices);
  for (int i = 1; i < count; ++i) devices.push_back({DeviceType::kCpu, i});
  return devices;
}

int parse(int argc, char** argv, EvalFlags& values) {
  Flags flags("Evaluates checkpoints of the CIFAR-10 tutorial's network");
  flags.add("--eval_dir,--eval-dir", values.eval_dir, "folder for summaries");
  flags.add_choice("--eval_data,--eval-data", values.eval_data, {"test", "train_eval"},
                   "images to evaluate");
  flags.add("--checkpoint_dir,--checkpoint-dir", values.checkpoint_dir,
            "the --train_dir of the training");
  flags.add("--eval_interval_secs,--eval-interval-secs", values.eval_interval_secs,
            "seconds between two evaluations");
  flags.add("--num_examples,--num-examples", values.num_examples, "number of images to evaluate");
  flags.add("--run_once,--run-once", values.run_once, "evaluates once and exits");
  flags.add("--batch_size,--batch-size", values.batch_size, "batch size");
  flags.add("--data_dir,--data-dir", values.data_dir,
            "folder with CIFAR-10's binary files, or with cifar-10-binary.tar.gz");
  flags.add("--use_fp16,--use-fp16", values.use_fp16, "computes in float16");
  flags.add("--synthetic", values.synthetic, "uses the synthetic images of the training programs");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  for (const auto& [flag, value] : {std::pair{"--eval_interval_secs", values.eval_interval_secs},
                                    std::pair{"--num_examples", values.num_examples},
                                    std::pair{"--batch_size", values.batch_size}}) {
    if (value >= 1) continue;
    std::fprintf(stderr, "error: %s: expected >= 1, got %lld\n", flag,
                 static_cast<long long>(value));
    return 2;
  }
  return -1;
}

/// Evaluates the newest checkpoint. Returns false if there is none.
bool evaluate_newest(const EvalFlags& flags, Evaluator& evaluator, const ImageData& images,
                     std::optional<EventFileWriter>& events) {
  const auto checkpoint = CheckpointManager(Checkpoint(), flags.checkpoint_dir).latest();
  if (!checkpoint) {
    std::printf("No checkpoint file found in %s\n", flags.checkpoint_dir.c_str());
    std::fflush(stdout);
    return false;
  }
  const std::int64_t step = evaluator.restore(*checkpoint);
  const Precision precision = evaluator.evaluate(images, flags.num_examples, flags.batch_size);
  std::printf("%s: precision @ 1 = %.3f\n", local_time(wall_time_seconds()).c_str(),
              precision.at_1());
  std::fflush(stdout);
  if (!events) events.emplace(flags.eval_dir);
  events->scalar("Precision @ 1", step, precision.at_1());
  return true;
}

int run(const EvalFlags& flags) {
  const std::string folder =
      flags.synthetic ? make_synthetic_images(flags.data_dir) : flags.data_dir;
  const ImageData images =
      read_images(folder, flags.eval_data == "test" ? Split::kTest : Split::kTrain);
  Evaluator evaluator(evaluation_devices(), flags.use_fp16);
  std::optional<EventFileWriter> events;
  for (;;) {
    const bool found = evaluate_newest(flags, evaluator, images, events);
    if (flags.run_once) return found ? 0 : 1;
    Clock::system().sleep_for(std::chrono::seconds(flags.eval_interval_secs));
  }
}

}  // namespace

Evaluator::Evaluator(std::vector<Device> devices, bool use_fp16)
    : strategy_({.devices = std::move(devices)}),
      use_fp16_(use_fp16),
      averages_({.decay = TowerTrainer::kMovingAverageDecay}) {
  const auto scope = strategy_.scope();
  network_.emplace(store_);
  averages_.track(store_.trainable_variables());
}

std::int64_t Evaluator::restore(const std::string& checkpoint) {
  const CheckpointInfo info =
      load_weights(checkpoint, averages_.averages(), {.ignore_unknown = true});
  averages_.assign_averages();
  return info.step;
}

Precision Evaluator::evaluate(const ImageData& images, std::int64_t num_examples,
                              std::int64_t batch_size) {
  const std::int64_t total = std::min(num_examples, images.labels.num_elements());
  const ImageData first{images.images.detached_rows(0, total),
                        images.labels.detached_rows(0, total)};
  const auto count_correct = [&](const Batch& batch) {
    Tower tower("eval");
    const Tensor logits = network_->inference(tower, batch.features(), use_fp16_);
    return reduce_sum(cast(equal(argmax(logits), batch.labels()), DType::kFloat32));
  };
  Precision precision{.correct = 0, .total = total};
  for (const PerReplica<Batch>& batch :
       strategy_.distribute_dataset(evaluation_inputs(first, batch_size))) {
    for (const Tensor& correct : strategy_.run(count_correct, batch)) {
      precision.correct += static_cast<std::int64_t>(correct.item());
    }
  }
  return precision;
}

int run_evaluation(int argc, char** argv) {
  EvalFlags flags;
  if (const int code = parse(argc, argv, flags); code >= 0) return code;
  return run_example([&] { return run(flags); });
}

}  // namespace tutti::examples::cifar10
