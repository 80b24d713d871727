// Gradients of activations, as operations of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

/// dy times the activation's derivative. dy and y (the activation's result) have one shape and
/// floating type.
Tensor relu_grad(const Operand& dy, const Operand& y);
Tensor sigmoid_grad(const Operand& dy, const Operand& y);
Tensor tanh_grad(const Operand& dy, const Operand& y);
Tensor elu_grad(const Operand& dy, const Operand& y);
/// The same from the activation's input x.
Tensor gelu_grad(const Operand& dy, const Operand& x);

}  // namespace tutti
