// Epochs, progress, checkpoints and the report of a training loop written by hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/example_options.h"
#include "examples/common/training_record.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/model/event_file.h"
#include "tutti/model/progress.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/recovery.h"

namespace tutti::examples {

/// What surrounds the steps of a custom loop: it counts epochs and steps, shows progress, logs,
/// saves and resumes, so that the example shows the training alone. With --checkpoint-dir a
/// checkpoint is written after each epoch, at the last step and on SIGINT or SIGTERM.
class TrainingSession {
 public:
  /// Restores the latest checkpoint with --resume. Make every variable before.
  TrainingSession(const ExampleOptions& options, Strategy& strategy, std::vector<Variable> weights,
                  const Optimizer& optimizer, DistributedDataset batches);

  /// Calls the loop over epochs. Under a launcher that starts dead workers again
  /// (TUTTI_MAX_RESTARTS) the others go back to the last step and it is called once more.
  void train(const std::function<void()>& loop);

  /// Whether there is another epoch to train (in part).
  bool begin_epoch();
  /// Tells of a finished step; false when the run should end here.
  bool step(float loss, std::int64_t examples);
  /// Shows and keeps what was evaluated after the epoch.
  void end_epoch(const std::string& metric, double value);
  /// Writes the report. The exit code: 0; 1 below `min_value` of the metric; 75 when it was asked
  /// to stop.
  int finish(double min_value);

 private:
  bool restore_latest();
  bool stopped() const;
  bool is_asked_to_stop();
  std::int64_t epoch() const;
  void take_times();
  void save();
  void log_scalar(const std::string& tag, double value);

  const ExampleOptions& options_;
  Strategy& strategy_;
  std::vector<Variable> weights_;
  const Optimizer& optimizer_;
  DistributedDataset batches_;
  TrainingRecord record_;
  std::optional<Progress> progress_;            // of the chief
  LocalStrategy* const local_;                  // nullptr: none of the library's
  MultiWorkerMirroredStrategy* const workers_;  // nullptr: another strategy
  std::optional<CheckpointManager> checkpoints_;
  std::optional<Recovery> recovery_;
  std::optional<EventFileWriter> events_;
  TimeSplit split_;
  std::int64_t first_step_of_epoch_ = 0;
  std::int64_t saved_step_ = -1;
  bool stopped_on_request_ = false;
  double last_value_ = 0.0;
};

}  // namespace tutti::examples
