// The callback: what happens at the joints of training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include "tutti/model/logs.h"

namespace tutti {

class Model;

/// Called by Model::fit and evaluate on the thread that called them, outside replicas, in the order
/// of the list. `batch` counts global batches of the epoch from 0: each is seen once, however many
/// replicas share it. Logs hold the values so far: in fit also those of validation, named
/// "val_...", once the epoch ends. keras.callbacks.Callback.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_train_begin() {}
  virtual void on_train_end(const Logs& /*logs*/) {}
  virtual void on_epoch_begin(std::int64_t /*epoch*/) {}
  /// Before any on_epoch_end(): may add numbers to the logs of the epoch, for all and the history.
  virtual void add_to_logs(std::int64_t /*epoch*/, Logs& /*logs*/) {}
  virtual void on_epoch_end(std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_train_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}
  virtual void on_test_begin() {}
  virtual void on_test_end(const Logs& /*logs*/) {}
  virtual void on_test_batch_begin(std::int64_t /*batch*/) {}
  virtual void on_test_batch_end(std::int64_t /*batch*/, const Logs& /*logs*/) {}

  /// Called before anything else with the model that is trained.
  void set_model(Model& model) { model_ = &model; }

 protected:
  Model& model() const { return *model_; }
  /// Whether this process writes files: of several workers one. A callback without model writes.
  bool is_chief() const;

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

}  // namespace tutti
