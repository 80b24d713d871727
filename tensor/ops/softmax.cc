// Softmax and the cross-entropies from logits: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/softmax.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

Tensor over_last_axis(OpId op, const Operand& x) {
  defined(op, x);
  require_floating(op, x);
  if (x.shape().rank() < 1) fail_op(op, x.where, "expected [..., classes], got ", x.shape());
  return dispatch_unary(op, x);
}

Tensor grad_from_result(OpId op, const Operand& y, const Operand& dy) {
  require_floating(op, y);
  require_same_dtype(op, y.tensor, defined(op, dy), dy.where);
  if (y.shape() != dy.shape() || y.shape().rank() < 1) {
    fail_op(op, dy.where, "expected a result [..., classes] and a gradient of its shape, got ",
            y.shape(), " and ", dy.shape());
  }
  return dispatch_one({op, {y.tensor, dy.tensor}, {{y.shape(), y.dtype()}}, {}, dy.where});
}

void check_classes(OpId op, const Operand& logits) {
  if (logits.shape().dim(-1) == 0) {
    fail_op(op, logits.where, "expected at least one class, got logits ", logits.shape());
  }
}

void check_sparse(OpId op, const Operand& labels, const Operand& logits) {
  require_index(op, labels);
  require_floating(op, logits);
  if (logits.shape().rank() != 2 || labels.shape() != Shape{logits.shape()[0]}) {
    fail_op(op, logits.where, "expected labels [batch] and logits [batch, classes], got ",
            labels.shape(), " and ", logits.shape(), "; try squeeze(labels, -1)");
  }
  check_classes(op, logits);
}

}  // namespace

Tensor softmax(const Operand& logits) { return over_last_axis(OpId::kSoftmax, logits); }
Tensor log_softmax(const Operand& logits) { return over_last_axis(OpId::kLogSoftmax, logits); }

Tensor softmax_grad(const Operand& y, const Operand& dy) {
  return grad_from_result(OpId::kSoftmaxGrad, y, dy);
}
Tensor log_softmax_grad(const Operand& y, const Operand& dy) {
  return grad_from_result(OpId::kLogSoftmaxGrad, y, dy);
}

Tensor sparse_softmax_cross_entropy(const Operand& labels, const Operand& logits) {
  constexpr OpId op = OpId::kSparseSoftmaxCrossEntropy;
  check_sparse(op, labels, logits);
  return dispatch_one(
      {op, {labels.tensor, logits.tensor}, {{labels.shape(), logits.dtype()}}, {}, logits.where});
}

Tensor sparse_softmax_cross_entropy_grad(const Operand& labels, const Operand& logits,
                                         const Operand& dy) {
  constexpr OpId op = OpId::kSparseSoftmaxCrossEntropyGrad;
  check_sparse(op, labels, logits);
  require_same_dtype(op, logits.tensor, defined(op, dy), dy.where);
  if (dy.shape() != labels.shape()) {
    fail_op(op, dy.where, "expected a gradient per example ", labels.shape(), ", got ", dy.shape());
  }
  return dispatch_one({op,
                       {labels.tensor, logits.tensor, dy.tensor},
                       {{logits.shape(), logits.dtype()}},
                       {},
                       dy.where});
}

Tensor softmax_cross_entropy(const Operand& labels, const Operand& logits) {
  constexpr OpId op = OpId::kSoftmaxCrossEntropy;
  defined(op, labels);
  defined(op, logits);
  require_floating(op, logits);
  require_same_dtype(op, labels.tensor, logits.tensor, logits.where);
  if (logits.shape().rank() != 2 || labels.shape() != logits.shape()) {
    fail_op(op, logits.where, "expected labels and logits [batch, classes], got ", labels.shape(),
            " and ", logits.shape(), "; for class numbers try sparse_softmax_cross_entropy()");
  }
  check_classes(op, logits);
  return dispatch_one({op,
                       {labels.tensor, logits.tensor},
                       {{{logits.shape()[0]}, logits.dtype()}},
                       {},
                       logits.where});
}

Tensor sigmoid_cross_entropy(const Operand& labels, const Operand& logits) {
  constexpr OpId op = OpId::kSigmoidCrossEntropy;
  defined(op, labels);
  defined(op, logits);
  require_floating(op, logits);
  require_same_dtype(op, labels.tensor, logits.tensor, logits.where);
  if (labels.shape() != logits.shape()) {
    fail_op(op, logits.where, "expected labels and logits of one shape, got ", labels.shape(),
            " and ", logits.shape());
  }
  return dispatch_one(
      {op, {labels.tensor, logits.tensor}, {{logits.shape(), logits.dtype()}}, {}, logits.where});
}

}  // namespace tutti
