// Runs the schedules of all ranks by one thread, in their memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cross_device_ops/algorithms/schedule.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// Carries out the steps of schedules in the memory of ranks. Host memory: at once.
class StepWorker {
 public:
  virtual ~StepWorker() = default;
  /// Scratch memory of a rank; lives as long as the run.
  virtual std::byte* scratch(std::size_t rank, std::size_t bytes);
  /// A message of `rank` is on its way to `peer`, which reads it in the rank's memory.
  virtual void sent(std::size_t rank, std::size_t peer);
  /// What a receiving step of `rank` does with `range` of `from`.
  virtual void take(std::span<const RankMemory> memory, std::size_t rank, const Step& step,
                    std::size_t from, const Range& range);
  /// A kCombine or kCopy step.
  virtual void apply(std::span<const RankMemory> memory, std::size_t rank, const Schedule& schedule,
                     const Step& step);

 private:
  std::vector<BufferRef> scratch_;
};

/// schedules[r] on memory[r]; scratch is supplied. Messages are not copied: a receiver reads its
/// sender's memory, and a step that would overwrite it waits. Throws kInternal for schedules that
/// do not fit each other.
void run_in_lockstep(std::span<const Schedule> schedules, std::span<RankMemory> memory,
                     StepWorker& worker);

}  // namespace tutti::internal
