// A run of the training programs: data, steps, lines, summaries, checkpoints.
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

/// What a run that was asked to stop by a signal ends with, after saving.
inline constexpr int kStoppedOnRequest = 75;

/// Trains as the flags say, on pictures that are there (`images`), and prints to standard output.
/// Without --resume it first deletes what an earlier run left in train_dir: its checkpoints and
/// event files, nothing else. Used by one thread.
class TrainingRun {
 public:
  static constexpr std::int64_t kSummaryFrequency = 100;
  static constexpr std::int64_t kCheckpointFrequency = 1'000;

  TrainingRun(const TrainFlags& flags, const ImageData& images);

  /// Until max_steps, or a signal: the exit code. Throws kFailedPrecondition ("Model diverged with
  /// loss = NaN") naming the step.
  int train();
  /// The losses of the steps of this process.
  const std::vector<float>& losses() const { return losses_; }
  /// What each of these steps took, the wait for its batch included.
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
  double seconds_ = 0.0;           // of the steps since the last line
  std::int64_t steps_to_log_ = 0;  // their number
};

/// Reads or makes the pictures, trains, and turns errors into a line and an exit code: the whole of
/// main().
int run_training(int argc, char** argv, bool with_towers);

}  // namespace tutti::examples::cifar10
