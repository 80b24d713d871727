// What a step that is being captured for replays must know besides the work on the devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/core/random.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class VariableMemory;

/// A captured step runs its function once; later the devices repeat the work, and the host does
/// only what was noted here. Code that computes on the host what changes from step to step asks
/// current() and notes it. Used by the one thread whose replica is being captured.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// The recorder of this thread; nullptr: nothing is being captured.
  static StepRecorder* current();

  /// Device memory of `bytes` (a multiple of 8) that holds, whenever the step runs, what `write`
  /// wrote for that step. `write` runs with the random context of the step and the replica.
  /// Calls of one identity (but none) share the place.
  using Identity = std::array<std::uint64_t, 4>;
  virtual const void* reserve(Device device, std::size_t bytes,
                              std::function<void(std::byte*)> write,
                              const Identity& identity = {}) = 0;
  /// What the host does in each replay, once for all replicas: `prepare` before any `write`,
  /// `commit` when the work is queued (where the function itself would have changed numbers).
  virtual void on_replay(std::function<void()> prepare, std::function<void()> commit) = 0;
  /// A variable is read or written: its elements must be in the same place in each replay.
  virtual void uses(const std::shared_ptr<VariableMemory>& memory) = 0;
  /// Says that `key` is made anew in each step from the random context.
  virtual void follows_step(const RandomKey& key) = 0;
  virtual bool is_of_step(const RandomKey& key) const = 0;
};

/// Makes `recorder` current on this thread until destroyed.
class StepRecorderScope {
 public:
  explicit StepRecorderScope(StepRecorder& recorder) : StepRecorderScope(&recorder) {}
  /// nullptr: nothing is noted meanwhile.
  explicit StepRecorderScope(StepRecorder* recorder);
  ~StepRecorderScope();
  StepRecorderScope(const StepRecorderScope&) = delete;
  StepRecorderScope& operator=(const StepRecorderScope&) = delete;

 private:
  StepRecorder* previous_;
};

}  // namespace tutti
