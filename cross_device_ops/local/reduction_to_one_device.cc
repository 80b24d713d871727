// Copies everything to one device, adds there, copies the result back.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/local/reduction_to_one_device.h"

#include <cstring>

#include "tutti/cross_device_ops/gpu/reductions.h"
#include "tutti/cross_device_ops/local/supports.h"
#include "tutti/tensor/buffer.h"

namespace tutti {

bool ReductionToOneDevice::supports(ReduceOp op, DType dtype, DeviceType device) const {
  return internal::can_combine(op, dtype, device);
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
