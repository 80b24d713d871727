// Activations that are made of other operations; relu, sigmoid, tanh ... are in elementwise.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/operand.h"

namespace tutti {

/// All of these: x of a floating type and any shape -> the same. Names and constants are Keras's,
/// the derivatives at corners TensorFlow's: that of the flat side, for leaky_relu() of the slope
/// below.

/// x * sigmoid(x), also called swish.
Tensor silu(const Operand& x);
/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): the approximation of gelu().
Tensor gelu_tanh(const Operand& x);
/// x where it is positive, else slope * x.
Tensor leaky_relu(const Operand& x, double slope = 0.2);
/// 1.0507 * (x where it is positive, else 1.67326 * (exp(x) - 1)); the derivative at 0 is 1.0507.
Tensor selu(const Operand& x);
/// min(max(x, 0), 6).
Tensor relu6(const Operand& x);
/// relu6(x + 3) / 6.
Tensor hard_sigmoid(const Operand& x);
/// x * hard_sigmoid(x), also called hard swish.
Tensor hard_silu(const Operand& x);
/// x / (|x| + 1).
Tensor softsign(const Operand& x);

}  // namespace tutti
