// Matrix products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

/// Options for matmul(). Each option swaps the last two axes of its operand before the product.
struct MatMulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};

/// Multiplies matrices of floating-point type: a [..., m, k] times b [..., k, n] -> [..., m, n].
/// Leading (batch) dimensions are equal in both, or absent in one. With transpose_a, a is [..., k,
/// m]; with transpose_b, b is [..., n, k]. If k = 0, the result is all zeros.
Tensor matmul(const Operand& a, const Operand& b, MatMulOptions options = {});

/// Returns activation(x [batch, ..., in] times kernel [in, out] + bias [out]), computed in one
/// pass.
Tensor dense(const Operand& x, const Operand& kernel, const Operand& bias,
             FusedActivation activation = FusedActivation::kNone);

}  // namespace tutti
