// Hooks of an Estimator: what happens around the steps of its training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/core/clock.h"
#include "tutti/model/event_file.h"

namespace tutti {

/// What a hook sees of a train() that runs, and may ask of it. tf's SessionRunContext.
struct SessionRunContext {
  std::int64_t global_step = 0;   // updates so far, those of earlier runs included
  double loss = 0.0;              // of the last step, over all replicas; 0 before the first
  bool is_chief = true;           // of several workers the one that writes and logs
  std::string model_dir;          // of the Estimator
  std::function<void()> save;     // a checkpoint of this step, once; a call of all workers
  bool is_asked_to_stop = false;  // by request_stop()

  /// The step that is done was the last one of this train().
  void request_stop() { is_asked_to_stop = true; }
};

/// Called by Estimator::train() on its thread, outside replicas, in the order of the list; on all
/// workers alike. tf.estimator.SessionRunHook.
class SessionRunHook {
 public:
  virtual ~SessionRunHook() = default;
  /// Variables have their values, no step is done; after each step; after the last one.
  virtual void begin(SessionRunContext& /*context*/) {}
  virtual void after_run(SessionRunContext& /*context*/) {}
  virtual void end(SessionRunContext& /*context*/) {}
};

/// Ends training when `last_step` updates are done in all, or `num_steps` in this train(). Throws
/// kInvalidArgument unless one of both is given.
class StopAtStepHook : public SessionRunHook {
 public:
  struct Options {
    std::optional<std::int64_t> num_steps = std::nullopt;
    std::optional<std::int64_t> last_step = std::nullopt;
  };
  explicit StopAtStepHook(Options options);
  void begin(SessionRunContext& context) override;
  void after_run(SessionRunContext& context) override;

 private:
  Options options_;
  std::int64_t last_step_ = 0;
};

/// Looks at the loss of each step: one that is NaN or infinite is kOutOfRange naming the step, or
/// only ends training. Every train() has one. tf's NanTensorHook.
class NanTensorHook : public SessionRunHook {
 public:
  explicit NanTensorHook(bool fail_on_nan_loss = true) : fails_(fail_on_nan_loss) {}
  void after_run(SessionRunContext& context) override;

 private:
  bool fails_;
};

/// Saves every so many steps and at the end. RunConfig::save_checkpoints_steps.
class CheckpointSaverHook : public SessionRunHook {
 public:
  explicit CheckpointSaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void begin(SessionRunContext& context) override { saved_step_ = context.global_step; }
  void after_run(SessionRunContext& context) override;
  void end(SessionRunContext& context) override { context.save(); }

 private:
  std::int64_t save_steps_;
  std::int64_t saved_step_ = 0;
};

/// Writes the loss for TensorBoard into the model_dir, every so many steps.
/// RunConfig::save_summary_steps.
class SummarySaverHook : public SessionRunHook {
 public:
  explicit SummarySaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t save_steps_;
  std::optional<EventFileWriter> events_;  // of the chief, from the first value on
};

/// A line of the log with loss and step every so many steps. RunConfig::log_step_count_steps.
class LoggingHook : public SessionRunHook {
 public:
  explicit LoggingHook(std::int64_t every_n_steps) : every_(every_n_steps) {}
  void begin(SessionRunContext& context) override;
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t every_;
  std::int64_t logged_step_ = 0;
  TimePoint logged_;
};

}  // namespace tutti
