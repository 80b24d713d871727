// The operation "auto": the fastest algorithm for each size.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/auto_ops.h"

#include "tutti/cross_device_ops/algorithms/scheduled_ops.h"
#include "tutti/cross_device_ops/gpu/reductions.h"
#include "tutti/cross_device_ops/local/local_ops.h"

namespace tutti {

bool AutoOps::supports(ReduceOp op, DType dtype, DeviceType) const {
  return internal::can_combine(op, dtype);
}

void AutoOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const ReplicaBuffer& first = buffers.front();
  // The table was measured on CPUs; on GPUs canonical moves as few bytes as any.
  if (first.work) return internal::canonical_on_gpus(op, buffers);
  const AlgorithmQuery query{.size = static_cast<int>(buffers.size()),
                             .bytes = first.count * size_of(first.dtype),
                             .dtype = first.dtype,
                             .medium = Medium::kLocal};
  const std::string_view chosen = internal::chosen_name(query);
  log_.note(query, chosen);
  auto& operation = operations_[std::string(chosen)];
  if (!operation && chosen == "canonical") operation = std::make_unique<Canonical>();
  if (!operation) operation = std::make_unique<ScheduledOps>(chosen);
  operation->all_reduce_in_place(op, buffers);
}

}  // namespace tutti
