// Activations composed of other operations, softmax, and cross-entropies computed from logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

// Activations composed of other operations; relu, sigmoid, tanh ... are in elementwise.h.

/// For all functions in this section, x has a floating-point type and any shape, and the result has
/// the same type and shape. Names and constants follow Keras. At kinks, derivatives equal
/// TensorFlow's: the derivative of the flat side, or `slope` for leaky_relu().

/// Returns x * sigmoid(x), also called swish.
Tensor silu(const Operand& x);
/// Returns x where x is positive, and slope * x elsewhere.
Tensor leaky_relu(const Operand& x, double slope = 0.2);
/// Returns 1.0507 * (x where x is positive, else 1.67326 * (exp(x) - 1)); the derivative at 0 is
/// 1.0507.
Tensor selu(const Operand& x);
/// Returns min(max(x, 0), 6).
Tensor relu6(const Operand& x);
/// Returns relu6(x + 3) / 6.
Tensor hard_sigmoid(const Operand& x);
/// Returns x * hard_sigmoid(x), also called hard swish.
Tensor hard_silu(const Operand& x);
/// Returns x / (|x| + 1).
Tensor softsign(const Operand& x);

// Softmax, and cross-entropies computed from logits.

/// softmax() returns e^logits divided by its sum over the last axis; log_softmax() returns the
/// logarithm of softmax().
Tensor softmax(const Operand& logits);
Tensor log_softmax(const Operand& logits);

/// Returns the loss of each label: labels [batch, ...] (int32 or int64), logits [batch, ...,
/// classes] -> [batch, ...]. If a label is outside 0 .. classes-1, throws kInvalidArgument, naming
/// the row and the label, on CPUs; on GPUs, its loss is NaN, and under XLA, 0.
Tensor sparse_softmax_cross_entropy(const Operand& labels, const Operand& logits);
/// Returns the loss of each row: labels [batch, ..., classes] (each row a distribution), logits of
/// the same shape -> [batch, ...].
Tensor softmax_cross_entropy(const Operand& labels, const Operand& logits);
/// Returns the loss per element for labels z and logits x of equal shape: max(x, 0) - x * z + log(1
/// + exp(-|x|)).
Tensor sigmoid_cross_entropy(const Operand& labels, const Operand& logits);

/// Returns the gradient with respect to the logits: (softmax(logits) - one_hot(labels)) * dy[row].
Tensor sparse_softmax_cross_entropy_grad(const Operand& labels, const Operand& logits,
                                         const Operand& dy);
/// Return the gradients of softmax() and log_softmax(), given their result y.
Tensor softmax_grad(const Operand& y, const Operand& dy);
Tensor log_softmax_grad(const Operand& y, const Operand& dy);

}  // namespace tutti
