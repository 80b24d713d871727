// Operations that repeat, turn round or pick elements along an axis; made of others but for
// reverse().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/operand.h"

namespace tutti {

/// The elements of each of `axes` in opposite order. tf.reverse.
Tensor reverse(const Operand& x, const std::vector<int>& axes);
/// x, multiples[i] times along axis i. tf.tile.
Tensor tile(const Operand& x, const std::vector<std::int64_t>& multiples);
/// Each element `count` times in a row along `axis`. tf.repeat with one number.
Tensor repeat(const Operand& x, std::int64_t count, int axis);
/// Tensors of one shape along a new axis. tf.stack.
Tensor stack(std::span<const Tensor> values, int axis,
             SourceLocation where = SourceLocation::current());
/// The parts of length 1 along `axis`, without it: the inverse of stack. tf.unstack.
std::vector<Tensor> unstack(const Operand& x, int axis = 0);
/// The slices of x at `indices` (int32 or int64, any shape) along `axis`, whose place in the
/// result's shape the shape of the indices takes. An index out of range throws. tf.gather.
Tensor gather(const Operand& x, const Operand& indices, int axis);

}  // namespace tutti
