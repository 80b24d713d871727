// Adds along the canonical tree: straight into every buffer, or on one device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/local/local_ops.h"

#include <cstring>

#include "tutti/cross_device_ops/gpu/reductions.h"
#include "tutti/cross_device_ops/reduce_to_all.h"
#include "tutti/tensor/buffer.h"

namespace tutti {

void Canonical::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) return internal::canonical_on_gpus(op, buffers);
  std::vector<std::byte*> all;
  for (const ReplicaBuffer& buffer : buffers) all.push_back(buffer.data);
  const std::vector<const std::byte*> inputs(all.begin(), all.end());
  const ReplicaBuffer& first = buffers.front();
  internal::reduce_to_all(op, first.dtype, inputs, all, first.count);
}

void ReductionToOneDevice::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const ReplicaBuffer& root = buffers.front();
  if (root.work) {
    internal::reduce_on_one_gpu(op, buffers, root);
    return broadcast_buffers(buffers, 0);
  }
  const std::size_t bytes = root.count * size_of(root.dtype);
  const BufferRef copies = BufferRef::allocate(bytes * (buffers.size() - 1));
  std::vector<const std::byte*> inputs{root.data};
  for (std::size_t r = 1; r < buffers.size(); ++r) {
    std::byte* const copy = copies->data() + (r - 1) * bytes;
    std::memcpy(copy, buffers[r].data, bytes);
    inputs.push_back(copy);
  }
  reduce_along_tree(op, root.dtype, inputs, root.data, root.count);
  broadcast_buffers(buffers, 0);
}

}  // namespace tutti
