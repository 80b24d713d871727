// What a Tensor points to, and tensors made of it. Internal to the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// A dense, row-major piece of a buffer. Never changes.
struct Tensor::Impl {
  BufferRef buffer;
  std::size_t offset = 0;  // bytes
  Shape shape;
  DType dtype = DType::kFloat32;
  Device device;
  std::uint64_t id = next_id();

  /// 1, 2, ...: unique in the process.
  static std::uint64_t next_id();
};

/// Makes a tensor of bytes that are in a buffer already (received ones, say): the elements from
/// byte `offset` of `buffer` on, which is host memory. Shares the buffer, whose bytes must not
/// change any more. A writer that takes the tensor over copies it first while the buffer is shared.
/// Throws kInvalidArgument for an offset that is no multiple of 64 bytes, and for elements beyond
/// the buffer's end. Thread-safe.
Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                        DType dtype);

namespace internal {

/// Bytes of a tensor. Throws kInvalidArgument when a size_t cannot count them.
std::size_t num_bytes(const Shape& shape, DType dtype);

/// Copies `bytes` bytes between the memories of two devices, either of which may be the host.
void copy_bytes(Device to_device, void* to, Device from_device, const void* from,
                std::size_t bytes);

/// Sets all elements to `value`. Throws kInvalidArgument naming `who` when `dtype` cannot hold it.
void fill(const MutableTensor& tensor, double value, std::string_view who);

}  // namespace internal
}  // namespace tutti
