// Gradients of convolutions and of pooling.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradients.h"

#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

// Gradients of convolutions.
//
// A convolution is linear in the image and in the filter, so all orders lead back to the same three
// operations.

namespace {

Conv2dAttributes without_activation(Conv2dAttributes attributes) {
  attributes.activation = FusedActivation::kNone;
  return attributes;
}

/// conv2d with padding as in `attributes`.
Tensor convolve(const Tensor& x, const Tensor& filter, const Shape& output_shape,
                const Conv2dAttributes& attributes) {
  OpCall call;
  call.op = OpId::kConv2d;
  call.inputs = {x, filter};
  call.outputs = {{output_shape, x.dtype()}};
  call.attributes = without_activation(attributes);
  return dispatch_one(std::move(call));
}

}  // namespace

Gradients conv2d_gradient(const GradientContext& c) {
  const auto& recorded = c.attributes_as<Conv2dAttributes>();
  const Conv2dAttributes attributes = without_activation(recorded);
  const bool fused = recorded.activation != FusedActivation::kNone;
  const Tensor dz = activation_gradient(recorded.activation, c.dy(), fused ? &c.out() : nullptr);
  Gradients result(c.num_inputs());
  if (c.needs(0)) result[0] = conv2d_backward_input(dz, c.in(1), c.shape(0), attributes);
  if (c.needs(1)) result[1] = conv2d_backward_filter(c.in(0), dz, c.shape(1), attributes);
  if (c.num_inputs() > 2 && c.needs(2)) result[2] = bias_grad(dz);
  return result;
}

/// Inputs (dy, filter); the gradient has the shape of the image.
Gradients conv2d_backward_input_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<Conv2dAttributes>();
  Gradients result(2);
  if (c.needs(0)) result[0] = convolve(c.dy(), c.in(1), c.shape(0), attributes);
  if (c.needs(1)) result[1] = conv2d_backward_filter(c.dy(), c.in(0), c.shape(1), attributes);
  return result;
}

/// Inputs (x, dy); the gradient has the shape of the filter.
Gradients conv2d_backward_filter_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<Conv2dAttributes>();
  Gradients result(2);
  if (c.needs(0)) result[0] = conv2d_backward_input(c.in(1), c.dy(), c.shape(0), attributes);
  if (c.needs(1)) result[1] = convolve(c.in(0), c.dy(), c.shape(1), attributes);
  return result;
}

Gradients bias_grad_gradient(const GradientContext& c) {
  return single(broadcast_to(c.dy(), c.shape(0)));
}

// Gradients of pooling.

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
