// What GPUs do to elements around a collective; sums along the canonical tree on GPUs that read
// each other's memory, or by their hosts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tensor/device_backend.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// None of these waits for a GPU. The buffers of a call are on one device, unless it says otherwise.

/// From any GPU, after that one's compute stream; its later work waits for the copy.
void copy_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// As many elements of another type, rounded once.
void cast_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// Divides each element. Floating types.
void divide_on_gpu(const ReplicaBuffer& buffer, std::size_t divisor);

/// Many copies within a device: one launch.
void copy_many_on_gpu(Device device, std::span<const DeviceCopy> copies);

/// A tensor's elements as a buffer. Operations do not write to inputs.
ReplicaBuffer buffer_of(const Tensor& tensor);
ReplicaBuffer buffer_of(const MutableTensor& tensor);

// Buffers of one length and dtype, with a `work`.

/// In place: each device forms its slice of the result from all buffers, then the slices are
/// spread. A device reads (V-1)/V of a buffer from its peers, twice: as much as a ring.
void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers);

/// Tensors of one shape and dtype, each on any GPU, combined by `where`.
Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where);

// Between GPUs and the host's memory: how workers' GPUs are summed by their hosts. All of it goes
// into the streams of `work`: nothing waits. Each GPU brings its slice, so that all links to the
// host are used at once.

/// Combines each node's replicas (numbers of `buffers`) along the canonical tree and copies that to
/// outputs[i], in host memory. The buffers hold something else afterwards. Types that are rounded
/// in between (16-bit ones) are widened first, by the caller.
void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs);

/// The elements at `values`, in host memory, to all buffers.
void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers);

}  // namespace tutti::internal
