// Internal representation of a Tensor, and functions that create tensors from memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Dense, row-major elements in a buffer. Immutable.
struct Tensor::Impl {
  BufferRef buffer;
  std::size_t offset = 0;  // in bytes
  Shape shape;
  DType dtype = DType::kFloat32;
  Device device;
  std::uint64_t id = next_id();

  /// Returns the next id (1, 2, ...), which is unique within the process.
  static std::uint64_t next_id();
  static Tensor tensor_of(Impl impl) { return Tensor(std::make_shared<const Impl>(impl)); }
  friend Tensor tensor_of_buffer(const BufferRef& buffer, const Shape& shape, DType dtype,
                                 Device device) {
    return tensor_of({.buffer = buffer, .shape = shape, .dtype = dtype, .device = device});
  }
};

/// Creates a tensor whose elements fill the whole buffer, which is in the memory of `device`.
Tensor tensor_of_buffer(const BufferRef& buffer, const Shape& shape, DType dtype, Device device);

/// Creates a tensor from elements that are already in host memory (e.g. received ones) and begin at
/// byte `offset` of `buffer`. Shares the buffer, whose bytes must no longer change; if the buffer
/// is shared, a writer that takes over the tensor copies the elements first. Throws
/// kInvalidArgument unless `offset` is a multiple of 64 and the elements fit in the buffer.
/// Thread-safe.
Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                        DType dtype);

namespace internal {

/// Returns the size of a tensor in bytes. Throws kInvalidArgument if it does not fit in a size_t.
std::size_t num_bytes(const Shape& shape, DType dtype);

/// Copies `bytes` bytes between the memories of two devices, either of which may be the host.
void copy_bytes(Device to_device, void* to, Device from_device, const void* from,
                std::size_t bytes);

/// Sets all elements to `value`. Throws kInvalidArgument naming `who` if the tensor's `dtype`
/// cannot represent `value`.
void fill(const MutableTensor& tensor, double value, std::string_view who);

}  // namespace internal
}  // namespace tutti
