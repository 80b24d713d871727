// Copies between tensors with strides, in units of up to 16 bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/strided_axes.h"

namespace tutti::cuda {

/// Elements in memory: the first one, and how many to skip per axis.
struct StridedElements {
  const void* data = nullptr;
  Strides strides{};
};

/// The largest unit of 1 to 16 bytes, a multiple of `element_size`, that divides `bytes` and both
/// addresses.
std::size_t copy_unit(std::size_t element_size, std::size_t bytes, const void* from,
                      const void* to);

/// to[...] = from[...] for all elements of `shape`, of `element_size` bytes each. `to` must not
/// overlap `from`.
void copy_strided(const Shape& shape, std::size_t element_size, const StridedElements& from,
                  const StridedElements& to, cudaStream_t stream);

/// `data` moved on by `count` elements.
inline const void* moved(const void* data, std::int64_t count, std::size_t element_size) {
  return static_cast<const std::byte*>(data) + count * static_cast<std::int64_t>(element_size);
}

}  // namespace tutti::cuda
