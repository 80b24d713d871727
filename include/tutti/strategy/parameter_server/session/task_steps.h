// The steps that a task runs for sessions, by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

namespace tutti {

/// A function cannot be sent to another process: each task's program defines the steps that
/// sessions may run on it, as with ClusterCoordinator::define(). A handle: copies share the steps.
/// Threads: any.
class TaskSteps {
 public:
  TaskSteps() : registry_(std::make_shared<internal::StepRegistry>()) {}

  /// Parameters and result of `fn` are Tensor, numbers, std::string and std containers of these;
  /// a step gets values, also of variables, and computes in default context. Steps of one session
  /// run one after the other on a task, those of different ones at once. Throws kAlreadyExists with
  /// both signatures.
  template <class Fn>
  void define(std::string_view step, Fn fn) {
    registry_->define(step, std::move(fn));
  }

  const internal::StepRegistry& registry() const { return *registry_; }

 private:
  std::shared_ptr<internal::StepRegistry> registry_;
};

}  // namespace tutti
