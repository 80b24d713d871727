// Sums of GPUs' buffers to the host's memory, and values from there to all of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/gpu/host_exchange.h"

#include <vector>

#include "tutti/cross_device_ops/gpu/device_work.h"
#include "tutti/cross_device_ops/gpu/reductions.h"

namespace tutti::internal {

void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs) {
  DeviceWork& work = *buffers.front().work;
  work.meet();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto members = buffers.subspan(static_cast<std::size_t>(nodes[i].first),
                                         static_cast<std::size_t>(nodes[i].count));
    for (std::size_t r = 0; r < members.size(); ++r) {
      // Slice r of all members is touched by member r alone.
      const std::vector<ReplicaBuffer> slices = slice_of_all(members, r);
      if (members.size() > 1) work.combine(op, slices, slices[r]);
      work.copy_to_host(slices[r], outputs[i] + (slices[r].data - members[r].data));
    }
  }
}

void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const ReplicaBuffer slice = slice_of_all(buffers, r)[r];
    work.copy_from_host(values + (slice.data - buffers[r].data), slice);
  }
  if (buffers.size() == 1) return;
  work.meet();
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<ReplicaBuffer> slices = slice_of_all(buffers, r);
    for (const ReplicaBuffer& slice : slices) work.copy(slices[r], slice);
  }
  work.meet();
}

}  // namespace tutti::internal
