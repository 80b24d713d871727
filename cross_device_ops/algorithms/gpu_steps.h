// The steps of algorithms/ on GPUs: kernels and copies between peers, ordered by events.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cross_device_ops/algorithms/lockstep.h"
#include "cross_device_ops/device_work.h"

namespace tutti::internal {

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
