// Implements TrainingRun.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/training_run.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "examples/cifar10/cifar10_input.h"
#include "examples/cifar10/placement_log.h"
#include "examples/cifar10/step_log.h"
#include "examples/cifar10/synthetic_images.h"
#include "examples/common/example_options.h"
#include "tutti/core/clock.h"
#include "tutti/core/random.h"

namespace tutti::examples::cifar10 {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
extern "C" void request_stop(int) { stop_requested = 1; }

TowerTrainerOptions trainer_options(const TrainFlags& flags, const std::vector<Device>& devices) {
  set_random_seed(static_cast<std::uint64_t>(flags.seed));
  return {.devices = devices,
          .variable_device = variable_device(flags, devices),
          .batch_size = flags.batch_size,
          .use_fp16 = flags.use_fp16,
          .tower_weights = tower_weights(flags, devices.size())};
}

/// Returns batches that are split over the towers.
DistributedDataset tower_batches(TowerTrainer& trainer, const ImageData& images,
                                 std::int64_t seed) {
  const DistortedInputOptions options{.batch_size = trainer.global_batch_size(),
                                      .seed = static_cast<std::uint64_t>(seed),
                                      .num_threads = num_preprocessing_threads()};
  return trainer.strategy().distribute_dataset(distorted_inputs(images, options));
}

Checkpoint with_input(Checkpoint checkpoint, DistributedDataset batches) {
  checkpoint.add_state("input", {[batches] { return batches.position(); },
                                 [batches](const Json& state) mutable { batches.restore(state); }});
  return checkpoint;
}

void delete_event_files(const std::string& directory) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(directory)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) fs::remove(entry.path());
  }
}

}  // namespace

TrainingRun::TrainingRun(const TrainFlags& flags, const ImageData& images)
    : flags_(flags),
      devices_(tower_devices(flags)),
      trainer_(trainer_options(flags, devices_)),
      batches_(tower_batches(trainer_, images, flags.seed)),
      summaries_(flags.train_dir) {
  checkpoints_.emplace(
      with_input(trainer_.checkpoint(), batches_), flags_.train_dir,
      CheckpointManagerOptions{.asynchronous = true, .on_error = OnSaveError::kContinue});
  print_setup();
  prepare_train_dir();
}

void TrainingRun::print_setup() const {
  if (flags_.devices.empty() && devices_.front().type == DeviceType::kCpu) {
    std::printf("There is no GPU: the towers run on virtual CPU devices (%s).\n",
                join(devices_).c_str());
  }
  if (flags_.log_device_placement) {
    for (const std::string& line : placement_of(trainer_.variables().variables())) {
      std::printf("%s\n", line.c_str());
    }
  }
  if (flags_.memory_report) {
    std::printf("%s", memory_report(trainer_.variable_groups(), devices_).c_str());
  }
  std::printf("Filling queue with %lld CIFAR images before starting to train.\n",
              static_cast<long long>(queue_size(0)));
  std::fflush(stdout);
}

void TrainingRun::prepare_train_dir() {
  if (flags_.resume) return resume();
  if (const auto latest = checkpoints_->latest()) {
    std::printf(
        "Deleting the checkpoints and summaries of an earlier run in %s (--resume continues "
        "from %s).\n",
        flags_.train_dir.c_str(), latest->c_str());
  }
  checkpoints_->delete_all();
  delete_event_files(flags_.train_dir);
}

void TrainingRun::resume() {
  const auto info = checkpoints_->restore_latest();
  if (!info) {
    fail(ErrorCode::kNotFound, "--resume: there is no checkpoint in ", flags_.train_dir,
         "; train without --resume first");
  }
  std::printf("Resumed after step %lld.\n", static_cast<long long>(info->step));
}

void TrainingRun::print_line(const StepResult& result, std::int64_t step) {
  const double seconds = seconds_ / static_cast<double>(steps_to_log_);
  const StepSpeed speed = step_speed(seconds, flags_.batch_size, devices_.size());
  std::printf("%s\n", step_line(wall_time_seconds(), step, result.loss, speed).c_str());
  std::fflush(stdout);
  seconds_ = 0.0;
  steps_to_log_ = 0;
}

/// Runs one step. Returns false after the last step.
bool TrainingRun::one_step(const PerReplica<Batch>& batch) {
  const std::int64_t step = trainer_.global_step().value().item_int();
  const bool with_summaries = step % kSummaryFrequency == 0;
  const bool with_placement = flags_.log_device_placement && losses_.empty();
  const StepResult result = trainer_.step(batch, {with_summaries, with_placement});
  step_seconds_.push_back(seconds_between(step_begin_, Clock::system().now()));
  seconds_ += step_seconds_.back();
  ++steps_to_log_;
  losses_.push_back(result.loss);
  for (const std::string& line : result.placement) std::printf("%s\n", line.c_str());
  if (!std::isfinite(result.loss)) {
    fail(ErrorCode::kFailedPrecondition, "Model diverged with loss = NaN: step ", step,
         ": expected a finite loss, got ", result.loss, "; try another --seed, or omit --use_fp16");
  }
  if (step % flags_.log_frequency == 0) print_line(result, step);
  if (with_summaries) summaries_.write(trainer_, result, step);
  const bool is_last = step + 1 >= flags_.max_steps || stop_requested != 0;
  if (is_last || (step + 1) % kCheckpointFrequency == 0) checkpoints_->save(step + 1);
  step_begin_ = Clock::system().now();  // the time of a step includes the wait for its batch
  return !is_last;
}

int TrainingRun::train() {
  const std::int64_t done = trainer_.global_step().value().item_int();
  if (done >= flags_.max_steps) {
    std::printf("Nothing to do: %lld steps are already done; set a larger --max_steps.\n",
                static_cast<long long>(done));
    return 0;
  }
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  step_begin_ = Clock::system().now();
  for (const PerReplica<Batch>& batch : batches_) {
    if (!one_step(batch)) break;
  }
  checkpoints_->wait();
  if (checkpoints_->last_error()) return 1;
  const bool has_finished = trainer_.global_step().value().item_int() >= flags_.max_steps;
  return has_finished ? 0 : kStoppedOnRequest;
}

int run_training(int argc, char** argv, bool with_towers) {
  TrainFlags flags;
  if (const int code = parse_train_flags(argc, argv, with_towers, flags); code >= 0) return code;
  return run_example([&] {
    const std::string folder =
        flags.synthetic ? make_synthetic_images(flags.data_dir) : flags.data_dir;
    TrainingRun run(flags, read_images(folder, Split::kTrain));
    return run.train();
  });
}

}  // namespace tutti::examples::cifar10
