// Adds along the canonical tree, straight into every buffer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/local/canonical.h"

#include <cstring>

#include "tutti/cross_device_ops/local/supports.h"

namespace tutti {

bool Canonical::supports(ReduceOp op, DType dtype, DeviceType device) const {
  return internal::host_supports(op, dtype, device);
}

void Canonical::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  std::vector<const std::byte*> inputs;
  for (const ReplicaBuffer& buffer : buffers) inputs.push_back(buffer.data);
  const ReplicaBuffer& first = buffers.front();
  reduce_along_tree(op, first.dtype, inputs, first.data, first.count);
  for (const ReplicaBuffer& buffer : buffers.subspan(1)) {
    std::memcpy(buffer.data, first.data, first.count * size_of(first.dtype));
  }
}

}  // namespace tutti
