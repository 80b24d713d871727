// Adds along the canonical tree, straight into every buffer.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/local/local_ops.h"

#include "cross_device_ops/gpu_reductions.h"
#include "cross_device_ops/reduce_to_all.h"

namespace tutti {

void Canonical::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) return internal::canonical_on_gpus(op, buffers);
  std::vector<std::byte*> all;
  for (const ReplicaBuffer& buffer : buffers) all.push_back(buffer.data);
  const std::vector<const std::byte*> inputs(all.begin(), all.end());
  const ReplicaBuffer& first = buffers.front();
  internal::reduce_to_all(op, first.dtype, inputs, all, first.count);
}

}  // namespace tutti
