// Gradients of activations: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise_grad.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

Tensor activation_grad(OpId op, const Operand& dy, const Operand& y) {
  require_floating(op, dy);
  require_same_dtype(op, dy.tensor, defined(op, y), dy.where);
  if (dy.shape() != y.shape()) {
    fail_op(op, dy.where, "expected two tensors of one shape, got ", dy.shape(), " and ",
            y.shape());
  }
  return dispatch_one({op, {dy.tensor, y.tensor}, {{dy.shape(), dy.dtype()}}, {}, dy.where});
}

}  // namespace

Tensor relu_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kReluGrad, dy, y);
}
Tensor sigmoid_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kSigmoidGrad, dy, y);
}
Tensor tanh_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kTanhGrad, dy, y);
}
Tensor elu_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kEluGrad, dy, y);
}
Tensor gelu_grad(const Operand& dy, const Operand& x) {
  return activation_grad(OpId::kGeluGrad, dy, x);
}

}  // namespace tutti
