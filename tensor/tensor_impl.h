// What a Tensor points to. Internal to tensor/.
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
