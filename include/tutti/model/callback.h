// What happens around training: named numbers (Logs), callbacks, and the value that they watch.
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

/// Values by name in a fixed order: {"loss", 0.31}, {"accuracy", 0.88}.
class Logs {
 public:
  using Entry = std::pair<std::string, double>;

  /// Throws kNotFound listing the names.
  double at(std::string_view name) const;
  double operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// Adds or replaces.
  void set(std::string name, double value);

  /// Reads back to the same bits.
  Json to_json() const;
  static Logs from_json(const Json& json);

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

/// What Model::fit returns: for each name one value per epoch.
class History {
 public:
  /// Throws kNotFound listing the names.
  const std::vector<double>& at(std::string_view name) const;
  const std::vector<double>& operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// The numbers of the epochs that were trained, from 0.
  const std::vector<std::int64_t>& epochs() const { return epochs_; }
  std::vector<std::string> names() const;
  void append(std::int64_t epoch, const Logs& logs);
  Json to_json() const;
  static History from_json(const Json& json);

 private:
  std::vector<std::int64_t> epochs_;
  std::vector<std::pair<std::string, std::vector<double>>> values_;
};

// The callback: what happens at the joints of training.

class Model;

/// How far fit() has come.
struct FitPoint {
  std::int64_t epoch = 0;    // under way, or to come when batches is 0
  std::int64_t batches = 0;  // done in it
  std::int64_t steps = 0;    // batches done in all epochs, before a restart, too
};

/// Called by Model::fit and evaluate on the thread that called them, outside replicas, in the order
/// of the list. They may call anything of this or another model but compile() of this one: fit()'s
/// losses and metrics stay its own. `batch` counts global batches of the epoch from 0: each is seen
/// once, however many replicas share it. Logs hold the values so far: in fit also those of
/// validation, named "val_...", once the epoch ends. keras.callbacks.Callback.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Around training, epochs, batches and tests; these do nothing unless overridden.
  virtual void on_train_begin() {}
  virtual void on_train_end(const Logs& /*logs*/) {}
  virtual void on_epoch_begin(std::int64_t /*epoch*/) {}
  /// Before any on_epoch_end(): may add numbers to the logs of the epoch, for all and the history.
  virtual void add_to_logs(std::int64_t /*epoch*/, Logs& /*logs*/) {}
  /// After an epoch; around each batch, each evaluation and its batches.
  virtual void on_epoch_end(std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_train_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}
  virtual void on_test_begin() {}
  virtual void on_test_end(const Logs& /*logs*/) {}
  virtual void on_test_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_test_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}

  /// What this callback counts and remembers: kept by BackupAndRestore and when a worker dies, so
  /// that training goes on as if nothing had happened. restore_*() comes after on_train_begin().
  /// The same on all workers, apart from files: any of them may give its state to another. A null
  /// (the default) is not given back.
  virtual Json save_state() const { return {}; }
  virtual void restore_state(const Json& /*state*/) {}
  virtual std::vector<Tensor> save_tensors() const { return {}; }
  virtual void restore_tensors(std::vector<Tensor> /*tensors*/) {}

  /// For callbacks that keep training itself: the moments at which all callbacks have seen the same
  /// of it, so that Model::fit_checkpoint() can be restored (after on_train_begin() of all), and
  /// saved (after each on_train_batch_end() and on_epoch_end() of all). All workers are called; one
  /// that was started in the place of another gets its state from the others, and restores nothing.
  virtual void on_can_restore() {}
  virtual void on_can_save(const FitPoint& /*point*/) {}

  /// Called before anything else with the model that is trained.
  void set_model(Model& model) { model_ = &model; }

 protected:
  Model& model() const { return *model_; }
  /// Whether this process writes files: of several workers one. A callback without model writes.
  bool is_chief() const;
  /// Returns the names of what the validation of the fit() that runs adds to logs, in some epochs
  /// only with validation_freq; empty without validation.
  std::vector<std::string> validation_names() const;

 private:
  Model* model_ = nullptr;
};

/// A callback in a list: made from an object (`EarlyStopping({.patience = 2})`, which is moved) or
/// from a shared_ptr, where the caller wants to look at it later.
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

// The value that a callback watches, and what is better.

class Model;

/// Whether smaller or larger values are better. kAuto: as the compiled metric of this name says
/// (Model::metric_direction()); "loss" is smaller. For other names kAuto is refused.
enum class MonitorMode { kAuto, kMin, kMax };

namespace internal {

/// A value of the logs, and its comparison with the best one so far.
class Monitor {
 public:
  /// Before there is a best value: every number is better.
  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

  /// `who`: the callback, for messages; a literal.
  Monitor(const char* who, std::string name, MonitorMode mode)
      : who_(who), name_(std::move(name)), mode_(mode) {}

  /// Throws kInvalidArgument when mode is kAuto and the model knows no direction of the name.
  bool larger_is_better(const Model& model) const;
  /// Whether `value` is better than `best` by more than `min_delta`. What is not a number is not
  /// better than anything.
  bool is_better(const Model& model, double value, double best, double min_delta = 0.0) const;
  /// The value in the logs; without it nothing, and a warning (once) that lists the names.
  std::optional<double> value(const Logs& logs) const;

 private:
  const char* who_;
  std::string name_;
  MonitorMode mode_;
};

}  // namespace internal

// A callback made of functions.

/// What is left out is not called.
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
