// What a run has measured, and epochs, progress, checkpoints and recovery around the steps of a
// training loop of one's own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
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

/// Counts steps, and keeps their losses if that is asked for: else a record has one size, however
/// many steps there were. Part of a checkpoint, so that a resumed run reports what a straight run
/// would. Used by one thread.
class TrainingRecord {
 public:
  explicit TrainingRecord(bool keeps_losses = false, Clock& clock = Clock::system());

  /// One step is done: its loss and the rows of its global batch.
  void step(float loss, std::int64_t rows);
  std::int64_t steps() const { return steps_; }
  /// Of all steps, or none; those of a run before that did not keep them are NaN.
  const std::vector<float>& losses() const { return losses_; }
  /// From the first step on; 0 before the second one.
  double examples_per_second() const;
  /// From the construction of the record; nothing before the first step.
  std::optional<double> seconds_to_first_step() const;

  Json save() const;
  void restore(const Json& state);

 private:
  bool keeps_losses_;
  Clock* clock_;
  TimePoint start_;
  std::optional<TimePoint> first_step_;
  TimePoint last_step_;
  std::int64_t timed_rows_ = 0;  // after the first step
  std::int64_t steps_ = 0;
  std::vector<float> losses_;
};

struct TrainingSessionOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;  // ends after so many; 0: no limit, for data that end
  /// Folder for log.jsonl and TensorBoard's events; empty: none.
  std::string log_dir = "";
  /// Folder for checkpoints; empty: none. One is written after each epoch, at the last step, and
  /// on SIGINT or SIGTERM, which end the run after the step under way.
  std::string checkpoint_dir = "";
  /// Goes on from the latest checkpoint; kNotFound where there is none.
  bool resume = false;
  /// How long this machine still lives after a signal. Above 0 the session saves at once, trains
  /// on, and saves again and ends before the time is over, with room left for two steps and two
  /// saves of the length that they had. A second signal ends it after the step under way. tf's
  /// TerminationConfig(grace_period).
  Duration grace_period = Duration::zero();
  /// What is called to save because of a signal, on all workers, with the number of steps, instead
  /// of writing a checkpoint; also without a checkpoint_dir. tf's TerminationConfig(save_fn).
  std::function<void(std::int64_t steps)> save_on_signal = {};
  /// Measures the grace period. Must outlive the session.
  Clock* clock = &Clock::system();
  /// Keeps the loss of every step in record(), in checkpoints too.
  bool keep_losses = false;
  /// A line of progress on standard output, of the chief.
  bool show_progress = true;
};

/// What surrounds the steps of a custom loop: it counts epochs and steps, shows progress, logs,
/// saves and resumes, so that the loop shows the training alone:
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
/// Under any strategy; all workers make the same calls. With a checkpoint_dir or save_on_signal it
/// takes over SIGINT and SIGTERM while it lives. One at a time, used by one thread.
class TrainingSession {
 public:
  /// Restores the latest checkpoint if that is asked for. Make every variable before. `strategy`
  /// and `optimizer` must outlive it.
  TrainingSession(Strategy& strategy, std::vector<Variable> weights, const Optimizer& optimizer,
                  DistributedDataset batches, TrainingSessionOptions options = {});
  ~TrainingSession();
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  /// Calls the loop over epochs. Under a launcher that starts dead workers again
  /// (TUTTI_MAX_RESTARTS) the others go back to the last step and it is called once more.
  void train(const std::function<void()>& loop);

  /// Whether there is another epoch to train (in part).
  bool begin_epoch();
  /// Tells of a finished step; false when the run should end here.
  bool step(float loss, std::int64_t examples);
  /// Shows and keeps what was evaluated after the epoch, and saves.
  void end_epoch(const std::string& metric, double value);
  /// Prints what was reached and waits for the last checkpoint. The exit code: 0; 75 when it was
  /// asked to stop; 1 when the checkpoint of that stop could not be written.
  int finish();

  const TrainingRecord& record() const { return record_; }
  /// Of the last end_epoch(); 0 before.
  double last_value() const { return last_value_; }

 private:
  void take_over_signals();
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

  const TrainingSessionOptions options_;
  Strategy& strategy_;
  std::vector<Variable> weights_;
  const Optimizer& optimizer_;
  DistributedDataset batches_;
  TrainingRecord record_;
  std::optional<Progress> progress_;            // of the chief
  MultiWorkerMirroredStrategy* const workers_;  // nullptr: another strategy
  std::optional<CheckpointManager> checkpoints_;
  std::optional<Recovery> recovery_;
  std::optional<EventFileWriter> events_;
  TimeSplit split_;
  std::int64_t first_step_of_epoch_ = 0;
  std::int64_t saved_step_ = -1;
  TimePoint step_began_;
  Duration longest_step_ = Duration::zero();
  Duration save_duration_ = Duration::zero();  // of the first save because of a signal
  std::optional<TimePoint> noticed_;           // when a signal was first seen here
  std::optional<TimePoint> grace_ends_;        // once all workers know of one
  bool stopped_on_request_ = false;
  std::string last_metric_;
  using SignalHandler = void (*)(int);
  std::optional<SignalHandler> earlier_handlers_[2] = {};  // of SIGINT and SIGTERM, once taken over
  double last_value_ = 0.0;
};

}  // namespace tutti
