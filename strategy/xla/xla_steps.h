// Replica steps as XLA programs: traced while the step function runs, then compiled and executed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti::internal {

/// Common implementation of the strategies on XLA devices. Used by one thread at a time or, during
/// a run, by the replicas' threads.
class XlaSteps {
 public:
  /// Replica r computes on devices[r]. Opens the plugin. Throws kUnavailable, with the reason and a
  /// remedy, if the plugin or a device is missing, and kUnimplemented in builds without XLA.
  explicit XlaSteps(const std::vector<Device>& devices);
  ~XlaSteps();
  XlaSteps(const XlaSteps&) = delete;
  XlaSteps& operator=(const XlaSteps&) = delete;

  /// Callback that runs `fn` as replica `replica` on this thread; operations are traced instead of
  /// computed.
  using NoteReplica = std::function<void(int replica, const std::function<void()>& fn)>;
  /// Calls `run_replicas`, which must call its argument once per replica, and runs the program that
  /// the replicas trace. Throws the same errors as StepPrograms::run(), and kUnimplemented within
  /// another step.
  void run(const std::function<void(const NoteReplica&)>& run_replicas);

  int num_compiled() const;
  /// Returns the StableHLO text of the program that ran last; empty if there was none.
  const std::string& last_program() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::internal
