// What is done to elements in a GPU's memory around a collective, by its compute stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tensor/device_backend.h"
#include "tutti/cross_device_ops/collective.h"
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

}  // namespace tutti::internal
