// Steps of replicas as programs of XLA: noted while their functions run, then compiled and run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti::internal {

/// What all strategies on XLA's devices share. One thread at a time, beside those of the replicas.
class XlaSteps {
 public:
  /// Replica r computes on devices[r]. Opens the plugin. Throws kUnavailable, with reason and
  /// remedy, without a plugin or such a device, kUnimplemented in builds without XLA.
  explicit XlaSteps(const std::vector<Device>& devices);
  ~XlaSteps();
  XlaSteps(const XlaSteps&) = delete;
  XlaSteps& operator=(const XlaSteps&) = delete;

  /// Calls `fn`, of replica `replica`, on this thread: operations are noted instead of computed.
  using NoteReplica = std::function<void(int replica, const std::function<void()>& fn)>;
  /// `run_replicas` calls what it is given once per replica; then their program runs. Throws as
  /// StepPrograms::run(), and kUnimplemented within another step.
  void run(const std::function<void(const NoteReplica&)>& run_replicas);

  int num_compiled() const;
  /// Of the step that ran last; empty: none did.
  const std::string& last_program() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::internal
