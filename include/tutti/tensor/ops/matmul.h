// Matrix products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

/// Options of matmul(): true swaps the last two axes of an operand.
struct MatMulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};

/// a [..., m, k] times b [..., k, n] -> [..., m, n], floating types. Leading (batch) dimensions are
/// equal in both, or absent in one. With transpose_a, a is [..., k, m]; with transpose_b, b is
/// [..., n, k]. k = 0 gives zeros.
Tensor matmul(const Operand& a, const Operand& b, MatMulOptions options = {});

/// activation(x [batch, in] times kernel [in, out] + bias [out]) in one pass.
Tensor dense(const Operand& x, const Operand& kernel, const Operand& bias,
             FusedActivation activation = FusedActivation::kNone);

}  // namespace tutti
