// A callback made of functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "tutti/model/callback.h"

namespace tutti {

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
