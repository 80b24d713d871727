// Gradients of activations: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise_grad.h"

#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace {

Tensor activation_grad(OpId op, const Operand& dy, const Operand& y) {
  if (dy.shape() != y.shape() || dy.dtype() != y.dtype() || !is_floating(dy.dtype())) {
    fail(ErrorCode::kInvalidArgument, to_string(op), " (", to_string(dy.where),
         "): expected two tensors of one shape and floating dtype, got ", dy.shape(), " of ",
         dy.dtype(), " and ", y.shape(), " of ", y.dtype());
  }
  OpCall call;
  call.op = op;
  call.inputs = {dy.tensor, y.tensor};
  call.outputs = {{dy.shape(), dy.dtype()}};
  call.where = dy.where;
  return dispatch_one(std::move(call));
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
