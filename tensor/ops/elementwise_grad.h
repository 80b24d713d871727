// Gradients of activations as operations of their own: faster than composing them, and
// differentiable again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/operand.h"

namespace tutti {

/// All: dy and the second tensor have one shape and one floating dtype, as has the result.

/// dy where y > 0, else 0; y is relu's result or its argument (same sign).
Tensor relu_grad(const Operand& dy, const Operand& y);
/// dy * y * (1 - y); y = sigmoid(x).
Tensor sigmoid_grad(const Operand& dy, const Operand& y);
/// dy * (1 - y^2); y = tanh(x).
Tensor tanh_grad(const Operand& dy, const Operand& y);
/// dy where y > 0, else dy * (y + 1); y = elu(x).
Tensor elu_grad(const Operand& dy, const Operand& y);
/// dy * (Phi(x) + x * phi(x)); x is gelu's argument.
Tensor gelu_grad(const Operand& dy, const Operand& x);

}  // namespace tutti
