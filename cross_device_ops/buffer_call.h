// Checked calls to a CrossDeviceOps on buffers; copies and conversions of buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

/// One call, with the buffers of the group's members in this process.
struct BufferCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::span<const ReplicaBuffer> inputs = {};   // empty for all_reduce and broadcast
  std::span<const ReplicaBuffer> outputs = {};  // reduce: at most one
  std::span<const std::size_t> counts = {};     // as for the `*_buffers` functions
  std::size_t group_size = 0;                   // number of group members; 0: all members are local

  bool reduces() const { return combines(collective); }
  const ReplicaBuffer& first() const { return outputs.empty() ? inputs.front() : outputs.front(); }
  std::size_t num_members() const {
    if (group_size > 0) return group_size;
    return inputs.empty() ? outputs.size() : inputs.size();
  }
  /// Returns true if a buffer's address is not a multiple of its element's size.
  bool is_misaligned() const;
};

/// Copies `from`'s elements to the start of `to`, which may be the same memory. On GPUs, the copy
/// is part of the buffers' `work`. If `work` is not set, the copy is queued in the compute stream,
/// and both buffers must be on one device.
void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to);

/// Same as copy_buffer(), but converts from or to float32 if the types differ. Accepts any
/// alignment in host memory.
void convert(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// Divides all elements by `divisor`, for MEAN. Accepts floating-point types at any alignment.
void divide(const ReplicaBuffer& buffer, std::size_t divisor);

/// Returns the elements of a communicator call as a mutable buffer. This is safe for
/// inputs, because operations do not write to them.
inline ReplicaBuffer buffer_of(const Elements& elements) {
  return {elements.data, elements.count, elements.dtype, {}};
}
inline ReplicaBuffer buffer_of(const ConstElements& elements) {
  return {const_cast<std::byte*>(elements.data), elements.count, elements.dtype, {}};
}

/// Returns the offsets at which parts of these lengths begin, followed by the end of the last part.
std::vector<std::size_t> cuts_of(std::span<const std::size_t> counts);

/// Calls the operation's `*_buffers` function for the members in this process, which may be all of
/// them. Performs no checks, does not compute MEAN, and has no fallback. reduce has no output if
/// the root is in another process.
void carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call);

/// Carries out a checked call on buffers of any alignment and type; the reduction may be MEAN. Uses
/// copies if the operation needs them, and falls back to "reduction_to_one_device" if the operation
/// does not support the call. On GPUs, adds the call's DeviceWork to `pending`, or joins it if
/// `pending` is null.
void carry_out(CrossDeviceOps& ops, const BufferCall& call, const CommunicationOptions& options,
               PendingReduction* pending);

}  // namespace tutti::internal
