// Softmax and the cross-entropies that are computed from logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/operand.h"

namespace tutti {

/// Over the last axis.
Tensor softmax(const Operand& logits);
Tensor log_softmax(const Operand& logits);

/// labels [batch] int32 or int64, logits [batch, classes] -> loss per example [batch]. A label
/// outside 0 .. classes-1 throws kInvalidArgument naming row and label.
Tensor sparse_softmax_cross_entropy(const Operand& labels, const Operand& logits);
/// labels [batch, classes] (each row a distribution), logits [batch, classes] -> [batch].
Tensor softmax_cross_entropy(const Operand& labels, const Operand& logits);
/// labels and logits of one shape -> that shape: max(x, 0) - x * z + log(1 + exp(-|x|)).
Tensor sigmoid_cross_entropy(const Operand& labels, const Operand& logits);

/// Gradient with respect to the logits: (softmax(logits) - one_hot(labels)) * dy[row].
Tensor sparse_softmax_cross_entropy_grad(const Operand& labels, const Operand& logits,
                                         const Operand& dy);
/// Gradients of softmax and log_softmax, from their result y.
Tensor softmax_grad(const Operand& y, const Operand& dy);
Tensor log_softmax_grad(const Operand& y, const Operand& dy);

}  // namespace tutti
