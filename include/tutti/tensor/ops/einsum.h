// Einstein summation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti {

/// Multiplies elements and sums over the axes whose letters are not in the result's subscripts.
/// einsum("bij,bjk->bik", {a, b}) multiplies matrices, "ii->" is the trace, "...ij->...ji"
/// transposes. Without "->", the axes of the result are the axes of "...", then the letters that
/// occur once, in alphabetical order. Axes with the same letter must have equal length; axes of
/// "..." broadcast. All operands have the same floating-point type and are multiplied from left to
/// right. Errors (kInvalidArgument) quote the equation. Corresponds to tf.einsum.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands,
              SourceLocation where = SourceLocation::current());
inline Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands,
                     SourceLocation where = SourceLocation::current()) {
  return einsum(equation, std::span<const Tensor>(operands.begin(), operands.size()), where);
}

}  // namespace tutti
