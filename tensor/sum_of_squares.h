// Sums of squares along a fixed order: what norms are made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// The sum of squares of `count` elements of a floating `dtype` in host memory, in double: blocks
/// of 4,096 elements from left to right, then tree_sum() of the blocks: an order that depends on
/// the size alone. Any thread.
double sum_of_squares(DType dtype, const void* data, std::size_t count);

/// [n] float64 on the device that all `tensors` (floating, at least one) share: the sum of squares
/// of each. On CPUs in the order above; on GPUs in another one that depends on the size alone, and
/// nobody waits.
Tensor sums_of_squares(std::span<const Tensor> tensors);

/// Neighbours are added, then neighbours of the sums, until one is left; 0 for none.
double tree_sum(std::vector<double> sums);

}  // namespace tutti
