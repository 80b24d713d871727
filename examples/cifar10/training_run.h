// Run of a training program: reads data, trains, and writes log lines, summaries and checkpoints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "examples/cifar10/tower_trainer.h"
#include "examples/cifar10/train_flags.h"
#include "examples/cifar10/train_summaries.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/core/clock.h"
#include "tutti/data/readers.h"

namespace tutti::examples::cifar10 {

/// Exit code of a run that saved a checkpoint and stopped because of a signal.
inline constexpr int kStoppedOnRequest = 75;

/// Trains on `images` as the flags specify, and prints to standard output. Without --resume, it
/// first deletes the checkpoints and event files of an earlier run in train_dir, but no other
/// files. Not thread-safe.
class TrainingRun {
 public:
  static constexpr std::int64_t kSummaryFrequency = 100;
  static constexpr std::int64_t kCheckpointFrequency = 1'000;

  TrainingRun(const TrainFlags& flags, const ImageData& images);

  /// Trains until max_steps or a signal. Returns the exit code. Throws kFailedPrecondition ("Model
  /// diverged with loss = NaN") naming the step if the loss is not finite.
  int train();
  /// Returns the loss of each step that this process ran.
  const std::vector<float>& losses() const { return losses_; }
  /// Returns the duration of each step that this process ran, in seconds, including the wait for
  /// the batch.
  const std::vector<double>& step_seconds() const { return step_seconds_; }

 private:
  void print_setup() const;
  void prepare_train_dir();
  void resume();
  bool one_step(const PerReplica<Batch>& batch);
  void print_line(const StepResult& result, std::int64_t step);

  TrainFlags flags_;
  std::vector<Device> devices_;
  TowerTrainer trainer_;
  DistributedDataset batches_;
  TrainSummaries summaries_;
  std::optional<CheckpointManager> checkpoints_;
  std::vector<float> losses_;
  std::vector<double> step_seconds_;
  TimePoint step_begin_;
  double seconds_ = 0.0;           // duration of the steps since the last log line
  std::int64_t steps_to_log_ = 0;  // number of steps since the last log line
};

/// Implements main(): reads or creates the images, trains, and handles errors.
int run_training(int argc, char** argv, bool with_towers);

}  // namespace tutti::examples::cifar10
