// Algorithms of algorithms/ on the buffers of one process, and "auto": the fastest for each size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/algorithms/schedule.h"
#include "cross_device_ops/device_work.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
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

/// Queues what one thread would do to the memory of ranks: a step waits for the send that it
/// receives, and for those who still read what it overwrites, and for nothing else, so that the
/// devices work side by side.
class GpuSteps final : public StepWorker {
 public:
  /// buffers[r]: of rank r; with a `work`.
  explicit GpuSteps(std::span<const ReplicaBuffer> buffers);

  std::byte* scratch(std::size_t rank, std::size_t bytes) override;
  void sent(std::size_t rank, std::size_t peer) override;
  void take(std::span<const RankMemory> memory, std::size_t rank, const Step& step,
            std::size_t from, const Range& range) override;
  void apply(std::span<const RankMemory> memory, std::size_t rank, const Schedule& schedule,
             const Step& step) override;

 private:
  struct Reader {
    ByteRange range;
    DeviceWork::Event end;
  };
  ReplicaBuffer at(std::size_t rank, const RankMemory& memory, const Range& range) const;
  void wait_for_readers(std::size_t rank, const ByteRange& range);

  DeviceWork& work_;
  const std::span<const ReplicaBuffer> buffers_;
  std::map<std::pair<std::size_t, std::size_t>, std::deque<DeviceWork::Event>> sent_;
  std::vector<std::vector<Reader>> readers_;  // [rank whose memory is read]
};

}  // namespace tutti::internal

namespace tutti {

/// ring, halving_doubling, tree, hierarchical_copy or reduction_to_one_device among the replicas of
/// a process: the same schedules as between processes (algorithms/algorithm.h), run by one thread,
/// so that a program has the same bits in both.
class ScheduledOps final : public CrossDeviceOps {
 public:
  /// Throws kNotFound for a name that is no algorithm.
  explicit ScheduledOps(std::string_view algorithm);
  std::string_view name() const override { return algorithm_.name; }
  /// Not 16-bit types where values are combined in several steps: each would round.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return algorithm_.determinism; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  const internal::Algorithm& algorithm_;
};

/// Chooses by choose_algorithm(), among algorithms that add along the canonical tree: the bits are
/// the same whatever is chosen.
class AutoOps final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "auto"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return Determinism::kCanonical; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  internal::ChoiceLog log_;
  std::map<std::string, std::unique_ptr<CrossDeviceOps>, std::less<>> operations_;
};

}  // namespace tutti
