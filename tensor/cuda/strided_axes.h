// Loop over the elements of several strided tensors, with as few axes as possible.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "tensor/cpu/strided_loop.h"
#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"

namespace tutti::cuda {

using internal::broadcast_strides;
using internal::dense_strides;
using internal::Strides;

/// Loop over `count` elements in row-major order, with the offset of each element in K operands.
/// Axes of length 1 are dropped; adjacent axes that every operand traverses with one stride are
/// merged. Passed to kernels by value.
template <int K>
struct StridedAxes {
  StridedAxes() = default;
  StridedAxes(const Shape& shape, const std::array<Strides, K>& operands) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      add_axis(shape.begin()[axis], operands, static_cast<std::size_t>(axis));
    }
    if (rank == 0) sizes[rank++] = 1;
    finish();
  }

  std::int64_t innermost() const { return sizes[rank - 1]; }
  std::int64_t stride(int operand, int axis) const { return strides[operand][axis]; }

  /// Returns true if each operand can be read in groups of `width` innermost elements that start at
  /// multiples of `width`, or repeats one element along the innermost axis.
  bool allows_width(std::int64_t width) const {
    if (rank > 1 && innermost() % width != 0) return false;
    for (int k = 0; k < K; ++k) {
      if (strides[k][rank - 1] == 0) continue;
      if (strides[k][rank - 1] != 1) return false;
      for (int axis = 0; axis + 1 < rank; ++axis) {
        if (strides[k][axis] % width != 0) return false;
      }
    }
    return true;
  }
  /// Returns the same loop over packs of `width` elements, with strides still in elements. The
  /// caller handles the remainder of a single axis.
  StridedAxes in_packs(std::int64_t width) const {
    StridedAxes packs = *this;
    packs.sizes[rank - 1] /= width;
    for (int k = 0; k < K; ++k) packs.strides[k][rank - 1] *= width;
    packs.finish();
    return packs;
  }

  __device__ __forceinline__ void offsets_of(std::int64_t index, std::int64_t (&offsets)[K]) const {
    std::int64_t rest = index;
    for (int k = 0; k < K; ++k) offsets[k] = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const std::int64_t next =
          is_small ? std::int64_t{divisors[axis].quotient(static_cast<std::uint32_t>(rest))}
                   : quotient_of_large(rest, sizes[axis]);
      const std::int64_t position = rest - next * sizes[axis];
      for (int k = 0; k < K; ++k) offsets[k] += position * strides[k][axis];
      rest = next;
    }
    for (int k = 0; k < K; ++k) offsets[k] += rest * strides[k][0];
  }

  int rank = 0;
  bool is_small = true;
  std::int64_t count = 1;
  std::int64_t sizes[Shape::kMaxRank] = {};
  Divisor divisors[Shape::kMaxRank];
  std::int64_t strides[K][Shape::kMaxRank] = {};

 private:
  void add_axis(std::int64_t size, const std::array<Strides, K>& operands, std::size_t axis) {
    if (size == 1) return;
    bool merges = rank > 0;
    for (int k = 0; k < K && merges; ++k) {
      merges = strides[k][rank - 1] == operands[static_cast<std::size_t>(k)][axis] * size;
    }
    if (merges) {
      sizes[rank - 1] *= size;
    } else {
      sizes[rank++] = size;
    }
    for (int k = 0; k < K; ++k) {
      strides[k][rank - 1] = operands[static_cast<std::size_t>(k)][axis];
    }
  }

  void finish() {
    count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= sizes[axis];
    is_small = count < kSmall;
    for (int axis = 0; is_small && axis < rank; ++axis) {
      if (sizes[axis] > 0) divisors[axis] = Divisor(static_cast<std::uint32_t>(sizes[axis]));
    }
  }
};

// Copies between strided tensors, in units of up to 16 bytes (copies.cu).

/// Elements in memory: the address of the first one, and the strides.
struct StridedElements {
  const void* data = nullptr;
  Strides strides{};
};

/// Returns the largest unit of 1 to 16 bytes, a multiple of `element_size`, that divides `bytes`
/// and both addresses.
std::size_t copy_unit(std::size_t element_size, std::size_t bytes, const void* from,
                      const void* to);

/// Copies all elements of `shape`, each `element_size` bytes long. `to` must not overlap `from`.
void copy_strided(const Shape& shape, std::size_t element_size, const StridedElements& from,
                  const StridedElements& to, cudaStream_t stream);

/// Returns `data` advanced by `count` elements.
inline const void* moved(const void* data, std::int64_t count, std::size_t element_size) {
  return static_cast<const std::byte*>(data) + count * static_cast<std::int64_t>(element_size);
}

}  // namespace tutti::cuda
