// Training session for custom loops: epochs, progress, checkpoints, recovery, and a record of the
// run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/core/clock.h"
#include "tutti/core/json.h"
#include "tutti/model/log_files.h"
#include "tutti/model/progress.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/recovery.h"

namespace tutti {

namespace internal {
class StopSignals;
}  // namespace internal

/// Record of a run: counts steps, and stores their losses if requested; if they are not stored, its
/// size does not depend on the number of steps. Part of a checkpoint, so a resumed run reports the
/// same values as an uninterrupted run. Not thread-safe.
class TrainingRecord {
 public:
  explicit TrainingRecord(bool keeps_losses = false, Clock& clock = Clock::system());

  /// Records a finished step: its loss and the rows of its global batch.
  void step(float loss, std::int64_t rows);
  std::int64_t steps() const { return steps_; }
  /// Losses of all steps, if stored; NaN for steps of an earlier run that did not store them.
  const std::vector<float>& losses() const { return losses_; }
  /// Returns the mean rate since the first step; 0 before the second step.
  double examples_per_second() const;
  /// Returns the time from the construction of the record to the first step; nullopt before the
  /// first step.
  std::optional<double> seconds_to_first_step() const;

  Json save() const;
  void restore(const Json& state);

 private:
  bool keeps_losses_;
  Clock* clock_;
  TimePoint start_;
  std::optional<TimePoint> first_step_;
  TimePoint last_step_;
  std::int64_t timed_rows_ = 0;  // number of rows in the steps after the first
  std::int64_t steps_ = 0;
  std::vector<float> losses_;
};

struct TrainingSessionOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;  // maximum number of steps; 0 for no limit, which requires finite data
  /// Folder for log.jsonl and TensorBoard's events; if empty, none are written.
  std::string log_dir = "";
  /// Folder for checkpoints; if empty, none are written. A checkpoint is written after each epoch,
  /// after the last step, and after SIGINT or SIGTERM, which end the run after the current step.
  std::string checkpoint_dir = "";
  /// Resumes from the latest checkpoint; throws kNotFound if there is none.
  bool resume = false;
  /// Time between a signal and the shutdown of this machine. If > 0, the session saves at once and
  /// continues training. It saves again and ends before the shutdown, with a margin of twice the
  /// longest step so far and twice the first save. A second signal ends the session after the
  /// current step. Corresponds to tf's TerminationConfig(grace_period).
  Duration grace_period = Duration::zero();
  /// Called with the number of steps, on all workers, when a signal requires a save; replaces the
  /// checkpoint. Does not need a checkpoint_dir. Corresponds to save_fn of tf's TerminationConfig.
  std::function<void(std::int64_t steps)> save_on_signal = {};
  /// Clock that measures the grace period. Must outlive the session.
  Clock* clock = &Clock::system();
  /// Stores the loss of every step in record() and in checkpoints.
  bool keep_losses = false;
  /// Shows a progress line on the chief's standard output.
  bool show_progress = true;
};

/// Bookkeeping for a custom loop: counts epochs and steps, shows progress, logs, saves and resumes,
/// so that the loop contains only the training:
///
///     TrainingSession session(*strategy, weights, optimizer, batches, {.epochs = 3});
///     session.train([&] {
///       while (session.begin_epoch()) {
///         for (const PerReplica<Batch>& batch : batches) {
///           Tensor loss = strategy->reduce(ReduceOp::kSum, strategy->run(train_step, batch));
///           if (!session.step(loss.item(), batch[0].global_rows())) break;
///         }
///         session.end_epoch("accuracy", evaluate());
///       }
///     });
///     return session.finish();
///
/// Supports every strategy; all workers must make the same calls. With a checkpoint_dir or
/// save_on_signal, it handles SIGINT and SIGTERM. Only one session may exist at a time. Not
/// thread-safe.
class TrainingSession {
 public:
  /// Restores the latest checkpoint if requested; all variables must exist by then. `strategy` and
  /// `optimizer` must outlive the session.
  TrainingSession(Strategy& strategy, std::vector<Variable> weights, const Optimizer& optimizer,
                  DistributedDataset batches, TrainingSessionOptions options = {});
  ~TrainingSession();
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  /// Calls `loop`, which loops over epochs. If the launcher restarts failed workers
  /// (TUTTI_MAX_RESTARTS), all workers return to the last completed step after a failure and call
  /// `loop` again.
  void train(const std::function<void()>& loop);

  /// Begins or resumes an epoch; returns false if all epochs are done.
  bool begin_epoch();
  /// Records a finished step; returns false if the run should end here.
  bool step(float loss, std::int64_t examples);
  /// Displays and stores the evaluation result at the end of the epoch, and saves a checkpoint.
  void end_epoch(const std::string& metric, double value);
  /// Prints the result and waits for the last checkpoint. Returns the exit code: 75 if the run
  /// ended because of a stop request, 1 if the checkpoint for that request could not be written,
  /// else 0.
  int finish();

  const TrainingRecord& record() const { return record_; }
  /// Value passed to the last end_epoch(); 0 if there was none.
  double last_value() const { return last_value_; }

 private:
  bool restore_latest();
  bool stopped() const;
  bool is_asked_to_stop();
  bool stops_because_of_signal();
  void begin_grace();
  void save_because_of_signal();
  std::int64_t epoch() const;
  void take_times();
  void save();
  void log_scalar(const std::string& tag, double value);
  double mean_loss() const { return loss_sum_ / static_cast<double>(loss_rows_); }
  std::string stop_text(bool is_saved) const;

  const TrainingSessionOptions options_;
  Strategy& strategy_;
  std::vector<Variable> weights_;
  const Optimizer& optimizer_;
  DistributedDataset batches_;
  TrainingRecord record_;
  std::optional<Progress> progress_;            // nullopt except on the chief
  MultiWorkerMirroredStrategy* const workers_;  // nullptr for any other strategy
  std::optional<CheckpointManager> checkpoints_;
  std::optional<Recovery> recovery_;
  std::optional<EventFileWriter> events_;
  TimeSplit split_;
  std::int64_t first_step_of_epoch_ = 0;
  std::int64_t saved_step_ = -1;
  TimePoint step_began_;
  Duration longest_step_ = Duration::zero();
  Duration save_duration_ = Duration::zero();  // duration of the first save after a signal
  std::optional<TimePoint> noticed_;           // time at which this worker first saw a signal
  std::optional<TimePoint> grace_ends_;        // nullopt before the grace period
  bool stopped_on_request_ = false;
  std::string last_metric_;
  std::shared_ptr<internal::StopSignals> stop_signals_;  // null if the session handles no signals
  double last_value_ = 0.0;
  // Number of rows in the epoch's steps so far, and the sum of the losses of these rows.
  std::int64_t loss_rows_ = 0;
  double loss_sum_ = 0.0;
};

}  // namespace tutti
