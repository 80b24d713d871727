// The collectives that an operation does not bring: made of its all_reduce and of copies.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/device_work.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {
namespace {

using internal::BufferCopies;

ReplicaBuffer part_of(const ReplicaBuffer& buffer, std::size_t first, std::size_t count) {
  ReplicaBuffer part = buffer;
  part.data += first * size_of(buffer.dtype);
  part.count = count;
  return part;
}

std::vector<ReplicaBuffer> parts_of(std::span<const ReplicaBuffer> buffers, std::size_t first,
                                    std::size_t count) {
  std::vector<ReplicaBuffer> parts;
  for (const ReplicaBuffer& buffer : buffers) parts.push_back(part_of(buffer, first, count));
  return parts;
}

using internal::copy_buffer;

/// On GPUs, where each device has a stream of its own: what follows begins after what was done to
/// any of the buffers.
void meet(std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) buffers.front().work->meet();
}

/// Copies reach the members of this process alone.
void require_local(std::string_view who, std::string_view collective, bool all_are_local) {
  if (all_are_local) return;
  fail(ErrorCode::kUnimplemented, who, ": ", collective,
       " between processes cannot be composed of its all_reduce; expected one of its own");
}

}  // namespace

bool CrossDeviceOps::provides(Collective collective) const {
  return collective == Collective::kAllReduce;
}

void CrossDeviceOps::abort(const Error&) noexcept {}

void CrossDeviceOps::require_buffers(std::span<const ReplicaBuffer>,
                                     std::span<const ReplicaBuffer>) const {}

void CrossDeviceOps::reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                    const ReplicaBuffer* output, int) {
  const BufferCopies copies(inputs, inputs.front().dtype, BufferCopies::Content::kCopied);
  all_reduce_buffers(op, copies.buffers());
  if (!output) return;
  meet(inputs);
  copy_buffer(copies.buffers().front(), *output);
  meet(inputs);
}

void CrossDeviceOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  require_local(name(), "broadcast", static_cast<std::size_t>(root) < buffers.size());
  const ReplicaBuffer& source = buffers[static_cast<std::size_t>(root)];
  meet(buffers);
  for (const ReplicaBuffer& buffer : buffers) copy_buffer(source, buffer);
  meet(buffers);
}

void CrossDeviceOps::all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  require_local(name(), "all_gather", counts.size() == inputs.size());
  const std::vector<std::size_t> offsets = internal::offsets_of(counts);
  meet(inputs);
  for (const ReplicaBuffer& output : outputs) {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      copy_buffer(inputs[r], part_of(output, offsets[r], counts[r]));
    }
  }
  meet(inputs);
}

void CrossDeviceOps::reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                            std::span<const ReplicaBuffer> outputs,
                                            std::span<const std::size_t> counts) {
  require_local(name(), "reduce_scatter", counts.size() == inputs.size());
  const std::vector<std::size_t> offsets = internal::offsets_of(counts);
  // Part by part: the copies together are as large as one input. In place, an output is a part that
  // no later step reads.
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    const BufferCopies copies(parts_of(inputs, offsets[r], counts[r]), inputs.front().dtype,
                              BufferCopies::Content::kCopied);
    all_reduce_buffers(op, copies.buffers());
    copy_buffer(copies.buffers()[r], outputs[r]);
  }
}

void CrossDeviceOps::all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  const std::size_t v = inputs.size();
  require_local(name(), "all_to_all", counts.size() == v * v);
  meet(inputs);
  std::vector<std::size_t> places(v);  // where the next part for each output goes
  for (std::size_t r = 0; r < v; ++r) {
    std::size_t first = 0;
    for (std::size_t s = 0; s < v; ++s) {
      const std::size_t count = counts[r * v + s];
      copy_buffer(part_of(inputs[r], first, count), part_of(outputs[s], places[s], count));
      first += count;
      places[s] += count;
    }
  }
  meet(inputs);
}

}  // namespace tutti
