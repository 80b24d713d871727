// Training callbacks, the Logs that they receive, and the History that fit() returns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/core/json_values.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Named values in the order in which they were added: {"loss", 0.31}, {"accuracy", 0.88}.
class Logs {
 public:
  using Entry = std::pair<std::string, double>;

  /// Returns a value by name. Throws kNotFound, listing all names, if the name is unknown.
  double at(std::string_view name) const;
  double operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// Adds or replaces a value.
  void set(std::string name, double value);

  /// from_json(to_json()) preserves all bits.
  Json to_json() const;
  static Logs from_json(const Json& json);

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

/// Result of Model::fit(): for each name, such as "loss", one value per epoch.
class History {
 public:
  /// Returns one value per epoch. Throws kNotFound, listing all names, if the name is unknown.
  const std::vector<double>& at(std::string_view name) const;
  const std::vector<double>& operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// Returns the indices of the trained epochs, from 0.
  const std::vector<std::int64_t>& epochs() const { return epochs_; }
  std::vector<std::string> names() const;
  void append(std::int64_t epoch, const Logs& logs);
  Json to_json() const;
  static History from_json(const Json& json);

 private:
  std::vector<std::int64_t> epochs_;
  std::vector<std::pair<std::string, std::vector<double>>> values_;
};

// The callback interface.

class Model;

/// Position in a running fit().
struct FitPoint {
  std::int64_t epoch = 0;    // current epoch, or the next epoch if batches is 0
  std::int64_t batches = 0;  // batches completed in this epoch
  std::int64_t steps = 0;    // batches completed in all epochs, including epochs before a restart
  bool is_stop = false;      // true if a signal makes fit() return here (stop_on_signals)
};

/// Receiver of the events of Model::fit() and Model::evaluate(). Callbacks are called in list
/// order, outside replicas, on the thread that called fit() or evaluate(). They may call all
/// functions of all models except compile() of this model; calling evaluate() does not change the
/// losses and metrics that fit() accumulates. `batch` counts global batches of the epoch from 0.
/// Logs contain the values so far and, at the end of an epoch of fit(), also the validation values,
/// named "val_...". Like keras.callbacks.Callback.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Called before and after training, epochs, batches and evaluations; the defaults do nothing.
  virtual void on_train_begin() {}
  virtual void on_train_end(const Logs& /*logs*/) {}
  virtual void on_epoch_begin(std::int64_t /*epoch*/) {}
  /// Called before on_epoch_end() of all callbacks; may add values to the logs, for callbacks and
  /// the history.
  virtual void add_to_logs(std::int64_t /*epoch*/, Logs& /*logs*/) {}
  virtual void on_epoch_end(std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_train_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}
  virtual void on_test_begin() {}
  virtual void on_test_end(const Logs& /*logs*/) {}
  virtual void on_test_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_test_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}

  /// Save and restore the state of this callback. BackupAndRestore and the recovery from a worker
  /// failure call them, so that training continues unchanged. restore_*() is called after
  /// on_train_begin(). The saved state, except that of written files, must be equal on all workers,
  /// because any worker may pass its state to another worker. A null state (the default) is not
  /// restored.
  virtual Json save_state() const { return {}; }
  virtual void restore_state(const Json& /*state*/) {}
  virtual std::vector<Tensor> save_tensors() const { return {}; }
  virtual void restore_tensors(std::vector<Tensor> /*tensors*/) {}

  /// Functions of callbacks that themselves save the training state, Model::fit_checkpoint().
  /// on_can_restore() is called after all callbacks' on_train_begin(), and may restore this
  /// checkpoint. on_can_save() is called after all callbacks' on_train_batch_end() and
  /// on_epoch_end(), and may save this checkpoint. These functions are called on all workers, with
  /// one exception: a worker that replaces a failed worker receives its state from another worker,
  /// and its on_can_restore() is not called.
  virtual void on_can_restore() {}
  virtual void on_can_save(const FitPoint& /*point*/) {}

  /// Sets the model that is trained or evaluated. Called before all other functions.
  void set_model(Model& model) { model_ = &model; }

 protected:
  Model& model() const { return *model_; }
  /// Returns true on the worker that writes files, and always if set_model() has not been called.
  bool is_chief() const;
  /// Returns the names of the values that validation adds to the logs of the running fit(); empty
  /// without validation. If validation_freq > 1, only some epochs have these values.
  std::vector<std::string> validation_names() const;

 private:
  Model* model_ = nullptr;
};

/// Element of a list of callbacks, made from an object (`EarlyStopping({.patience = 2})`, which is
/// moved) or from a shared_ptr that the caller keeps to inspect the callback later.
class AnyCallback {
 public:
  template <std::derived_from<Callback> C>
  AnyCallback(C callback) : callback_(std::make_shared<C>(std::move(callback))) {}
  template <std::derived_from<Callback> C>
  AnyCallback(std::shared_ptr<C> callback) : callback_(std::move(callback)) {}

  Callback& operator*() const { return *callback_; }
  Callback* operator->() const { return callback_.get(); }

 private:
  std::shared_ptr<Callback> callback_;
};

// Monitored values.

class Model;

/// Direction of improvement. kAuto uses the direction of the compiled metric
/// (Model::metric_direction(); for "loss", smaller is better) and throws kInvalidArgument for names
/// without a direction.
enum class MonitorMode { kAuto, kMin, kMax };

namespace internal {

/// Value monitored in the logs, and its comparison with the best value so far.
class Monitor {
 public:
  /// Initial best value, NaN: is_better() returns true for any number compared with it.
  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

  /// `who`: name of the callback, used in messages; must be a string literal.
  Monitor(const char* who, std::string name, MonitorMode mode)
      : who_(who), name_(std::move(name)), mode_(mode) {}

  /// Returns true if larger is better. Throws kInvalidArgument if kAuto cannot determine this.
  bool larger_is_better(const Model& model) const;
  /// Returns true if `value` is better than `best` by more than `min_delta`. NaN is never better.
  bool is_better(const Model& model, double value, double best, double min_delta = 0.0) const;
  /// Returns the monitored value in the logs. If it is missing, warns once and lists the names in
  /// the logs.
  std::optional<double> value(const Logs& logs) const;

 private:
  const char* who_;
  std::string name_;
  MonitorMode mode_;
};

}  // namespace internal

// Callback built from functions.

/// Functions of a LambdaCallback; empty functions are not called.
struct LambdaCallbackOptions {
  std::function<void()> on_train_begin = {};
  std::function<void(const Logs& logs)> on_train_end = {};
  std::function<void(std::int64_t epoch)> on_epoch_begin = {};
  std::function<void(std::int64_t epoch, const Logs& logs)> on_epoch_end = {};
  std::function<void(std::int64_t batch)> on_train_batch_begin = {};
  std::function<void(std::int64_t batch, const Logs& logs)> on_train_batch_end = {};
  std::function<Json()> save_state = {};
  std::function<void(const Json& state)> restore_state = {};
};

/// Callback that calls the given functions:
/// `LambdaCallback({.on_epoch_end = [&](std::int64_t epoch, const Logs& logs) { ... }})`.
class LambdaCallback : public Callback {
 public:
  explicit LambdaCallback(LambdaCallbackOptions functions) : functions_(std::move(functions)) {}

  void on_train_begin() override { call(functions_.on_train_begin); }
  void on_train_end(const Logs& logs) override { call(functions_.on_train_end, logs); }
  void on_epoch_begin(std::int64_t epoch) override { call(functions_.on_epoch_begin, epoch); }
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override {
    call(functions_.on_epoch_end, epoch, logs);
  }
  void on_train_batch_begin(std::int64_t batch) override {
    call(functions_.on_train_batch_begin, batch);
  }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override {
    call(functions_.on_train_batch_end, batch, logs);
  }
  Json save_state() const override {
    return functions_.save_state ? functions_.save_state() : Json();
  }
  void restore_state(const Json& state) override { call(functions_.restore_state, state); }

 private:
  template <class Function, class... Args>
  static void call(const Function& function, const Args&... args) {
    if (function) function(args...);
  }

  LambdaCallbackOptions functions_;
};

}  // namespace tutti
