// Nested loops over strided operands, with the fewest and longest innermost runs possible.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tutti/tensor/shape.h"

namespace tutti::internal {

/// Strides per axis, in elements.
using Strides = std::array<std::int64_t, Shape::kMaxRank>;

/// Returns the strides of a dense, row-major tensor.
inline Strides dense_strides(const Shape& shape) {
  Strides strides{};
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[static_cast<std::size_t>(axis)] = stride;
    stride *= shape.begin()[axis];
  }
  return strides;
}

/// Returns the strides with which a dense tensor of shape `from` is read as one of shape `to`; they
/// are 0 along repeated axes.
inline Strides broadcast_strides(const Shape& from, const Shape& to) {
  const Strides dense = dense_strides(from);
  Strides strides{};
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (from.begin()[axis] == 1) continue;
    strides[static_cast<std::size_t>(to.rank() - from.rank() + axis)] =
        dense[static_cast<std::size_t>(axis)];
  }
  return strides;
}

/// Loop over the elements of `shape` with K operands. Adjacent axes that every operand traverses
/// with one stride are merged, and axes of length 1 are dropped. Requires: `shape` is not empty.
template <std::size_t K>
class StridedLoop {
 public:
  StridedLoop(const Shape& shape, const std::array<Strides, K>& strides) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      add_axis(shape.begin()[axis], strides, static_cast<std::size_t>(axis));
    }
    if (rank_ == 0) sizes_[rank_++] = 1;
  }

  /// Return the length of the innermost run, and an operand's stride along it.
  std::int64_t run_length() const { return sizes_[rank_ - 1]; }
  std::int64_t run_stride(std::size_t operand) const { return strides_[operand][rank_ - 1]; }

  /// Calls body(offsets) for each innermost run, in row-major order; offsets[k] is where operand k
  /// starts. Inlined, so that loops in `body` are compiled for the caller's instruction set.
  template <class Body>
  [[gnu::always_inline]] inline void for_each_run(const Body& body) const {
    std::array<std::int64_t, K> offsets{};
    std::array<std::int64_t, Shape::kMaxRank> position{};
    for (;;) {
      body(offsets);
      std::size_t axis = rank_ - 1;
      for (;;) {
        if (axis == 0) return;
        --axis;
        for (std::size_t k = 0; k < K; ++k) offsets[k] += strides_[k][axis];
        if (++position[axis] < sizes_[axis]) break;
        for (std::size_t k = 0; k < K; ++k) offsets[k] -= strides_[k][axis] * sizes_[axis];
        position[axis] = 0;
      }
    }
  }

 private:
  void add_axis(std::int64_t size, const std::array<Strides, K>& strides, std::size_t axis) {
    if (size == 1) return;
    bool merges = rank_ > 0;
    for (std::size_t k = 0; k < K && merges; ++k) {
      merges = strides_[k][rank_ - 1] == strides[k][axis] * size;
    }
    if (merges) {
      sizes_[rank_ - 1] *= size;
    } else {
      sizes_[rank_++] = size;
    }
    for (std::size_t k = 0; k < K; ++k) strides_[k][rank_ - 1] = strides[k][axis];
  }

  std::size_t rank_ = 0;
  std::array<std::int64_t, Shape::kMaxRank> sizes_{};
  std::array<Strides, K> strides_{};
};

}  // namespace tutti::internal
