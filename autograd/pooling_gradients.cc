// Gradients of pooling.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradients.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

Gradients max_pool_gradient(const GradientContext& c) {
  return single(max_pool2d_grad(c.in(0), c.dy(), c.attributes_as<Pool2dAttributes>()));
}

Gradients average_pool_gradient(const GradientContext& c) {
  return single(average_pool2d_grad(c.dy(), c.shape(0), c.attributes_as<Pool2dAttributes>()));
}

/// Averaging is linear: the gradient of its gradient is averaging again.
Gradients average_pool_grad_gradient(const GradientContext& c) {
  OpCall call;
  call.op = OpId::kAveragePool;
  call.inputs = {c.dy()};
  call.outputs = {{c.shape(0), c.dtype(0)}};
  call.attributes = c.attributes_as<Pool2dAttributes>();
  return single(dispatch_one(std::move(call)));
}

}  // namespace tutti::internal
