// Adds within groups of devices, then across groups, then copies down.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a *group* is a run of `group_size` consecutive replicas, its *leader* the first of
// them. group_size is a power of two, so that every group is a whole subtree of the canonical tree
// (the last group may be smaller: it then is the subtree of what is left). Steps: 1. each leader
// gets the sum of its group; 2. the first leader gets the sum over leaders; 3. leaders get the
// result; 4. groups do.
#include "tutti/cross_device_ops/local/hierarchical_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tutti/cross_device_ops/local/supports.h"

namespace tutti {
namespace {

std::size_t group_size_for(std::size_t num_replicas) {
  return std::bit_floor(static_cast<std::size_t>(std::sqrt(static_cast<double>(num_replicas))));
}

void sum_into_first(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  if (buffers.size() == 1) return;
  std::vector<const std::byte*> inputs;
  for (const ReplicaBuffer& buffer : buffers) inputs.push_back(buffer.data);
  const ReplicaBuffer& first = buffers.front();
  reduce_along_tree(op, first.dtype, inputs, first.data, first.count);
}

}  // namespace

bool HierarchicalCopy::supports(ReduceOp op, DType dtype, DeviceType device) const {
  return !is_half(dtype) && internal::host_supports(op, dtype, device);  // adds in two steps
}

void HierarchicalCopy::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const std::size_t group_size = group_size_for(buffers.size());
  std::vector<ReplicaBuffer> leaders;
  std::vector<std::span<const ReplicaBuffer>> groups;
  for (std::size_t first = 0; first < buffers.size(); first += group_size) {
    groups.push_back(buffers.subspan(first, std::min(group_size, buffers.size() - first)));
    sum_into_first(op, groups.back());
    leaders.push_back(groups.back().front());
  }
  sum_into_first(op, leaders);
  broadcast_buffers(leaders, 0);
  for (const auto& group : groups) broadcast_buffers(group, 0);
}

}  // namespace tutti
