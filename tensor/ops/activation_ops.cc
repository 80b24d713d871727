// Activations composed of other operations, softmax, and cross-entropies from logits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/activation_ops.h"

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

// Activations composed of other operations.

namespace {

using namespace internal;

/// Throws unless x has a floating-point type. The error names the activation.
void check(std::string_view name, const Operand& x) {
  if (is_floating(defined(OpId::kMultiply, x).dtype())) return;
  fail(ErrorCode::kInvalidArgument, who(name, x.where), ": expected a floating-point type, got ",
       x.dtype(), " of shape ", x.shape(), "; call cast()");
}

}  // namespace

Tensor silu(const Operand& x) {
  check("silu", x);
  return x.tensor * sigmoid(x);
}

Tensor leaky_relu(const Operand& x, double slope) {
  check("leaky_relu", x);
  return where(greater(x, 0.0), x, x.tensor * slope);
}

Tensor selu(const Operand& x) {
  check("selu", x);
  constexpr double kAlpha = 1.6732632423543772, kScale = 1.0507009873554805;
  return where(greater_equal(x, 0.0), x.tensor * kScale, elu(x) * (kAlpha * kScale));
}

Tensor relu6(const Operand& x) {
  check("relu6", x);
  return minimum(6.0, relu(x));  // not clip(), whose derivative is 1 at both ends
}

Tensor hard_sigmoid(const Operand& x) {
  check("hard_sigmoid", x);
  return relu6(x.tensor + 3.0) / 6.0;
}

Tensor hard_silu(const Operand& x) {
  check("hard_silu", x);
  return x.tensor * hard_sigmoid(x);
}

Tensor softsign(const Operand& x) {
  check("softsign", x);
  return x.tensor / (abs(x) + 1.0);
}

// Softmax, and cross-entropies from logits: argument checks and dispatch.

namespace {

Tensor over_last_axis(OpId op, const Operand& x) {
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
  if (logits.shape().rank() < 1 || labels.shape() != logits.shape().without_axis(-1)) {
    fail_op(op, logits.where, "expected labels [batch] and logits [batch, classes], got ",
            labels.shape(), " and ", logits.shape(), "; call squeeze(labels, -1)");
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
    fail_op(op, dy.where, "expected one gradient per example, of shape ", labels.shape(), ", got ",
            dy.shape());
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
  require_floating(op, logits);
  require_same_dtype(op, labels.tensor, logits.tensor, logits.where);
  if (logits.shape().rank() < 1 || labels.shape() != logits.shape()) {
    fail_op(op, logits.where, "expected labels and logits [batch, classes], got ", labels.shape(),
            " and ", logits.shape(), "; for class numbers call sparse_softmax_cross_entropy()");
  }
  check_classes(op, logits);
  return dispatch_one({op,
                       {labels.tensor, logits.tensor},
                       {{logits.shape().without_axis(-1), logits.dtype()}},
                       {},
                       logits.where});
}

Tensor sigmoid_cross_entropy(const Operand& labels, const Operand& logits) {
  constexpr OpId op = OpId::kSigmoidCrossEntropy;
  defined(op, labels);
  require_floating(op, logits);
  require_same_dtype(op, labels.tensor, logits.tensor, logits.where);
  if (labels.shape() != logits.shape()) {
    fail_op(op, logits.where, "expected labels and logits of equal shape, got ", labels.shape(),
            " and ", logits.shape());
  }
  return dispatch_one(
      {op, {labels.tensor, logits.tensor}, {{logits.shape(), logits.dtype()}}, {}, logits.where});
}

}  // namespace tutti
