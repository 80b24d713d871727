// Sums along the canonical tree on GPUs that read each other's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/cross_device_ops/replica_buffer.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// Buffers of one length and dtype, with a `work`.

/// Slice `r` of all buffers, one slice per buffer: cut where vectors of elements begin, so the last
/// ones may be empty.
std::vector<ReplicaBuffer> slice_of_all(std::span<const ReplicaBuffer> buffers, std::size_t r);

/// In place: each device forms its slice of the result from all buffers, then the slices are
/// spread. A device reads (V-1)/V of a buffer from its peers, twice: as much as a ring.
void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers);

/// Into `output`, by its device; it may be one of the buffers.
void reduce_on_one_gpu(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                       const ReplicaBuffer& output);

/// Tensors of one shape and dtype, each on any GPU, combined by `where`.
Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where);

}  // namespace tutti::internal
