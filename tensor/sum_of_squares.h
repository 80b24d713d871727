// Sums of squares in a fixed order, for norms.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Returns the sum of squares of `count` elements of a floating-point `dtype` in host memory, in
/// double. Sums blocks of 4,096 elements from left to right, then the blocks with tree_sum(): the
/// order depends only on the size. Thread-safe.
double sum_of_squares(DType dtype, const void* data, std::size_t count);

/// Returns the sum of squares of each tensor: [n] float64 on the device that all `tensors`
/// (floating-point, at least one) share. On CPUs, elements are added in the order of
/// sum_of_squares(); on GPUs, in another order. Both depend only on the size. Does not wait for
/// GPUs.
Tensor sums_of_squares(std::span<const Tensor> tensors);

/// Adds pairs of adjacent numbers, then pairs of adjacent sums, until one sum is left. Returns 0 if
/// `sums` is empty.
double tree_sum(std::vector<double> sums);

}  // namespace tutti
