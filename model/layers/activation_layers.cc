// Activations as layers of their own.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/activation_layers.h"

#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

Activation::Activation(std::string_view function, ActivationOptions options)
    : LayerOf(options.name, options.input_shape), function_(find_activation(function)) {}

Shape Activation::build(const Shape& input) {
  set_output_activation(function_.name);
  return input;
}

Tensor Activation::call(const Tensor& input, CallContext) const { return function_(input); }

LeakyRelu::LeakyRelu(double alpha, ActivationOptions options)
    : LayerOf(options.name, options.input_shape), alpha_(alpha) {
  if (!(alpha >= 0.0 && alpha <= 1.0))
    fail(ErrorCode::kInvalidArgument, "LeakyRelu: expected alpha in [0, 1], got ", alpha);
}

Shape LeakyRelu::build(const Shape& input) { return input; }

Tensor LeakyRelu::call(const Tensor& input, CallContext) const {
  return maximum(input, input * alpha_);
}

PReLU::PReLU(PReLUOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {}

Shape PReLU::build(const Shape& input) {
  Shape alpha = input;
  for (const int axis : options_.shared_axes) {
    if (axis < 1 || axis > input.rank()) {
      fail(ErrorCode::kInvalidArgument, "PReLU: expected shared axes from 1 to ", input.rank(),
           " for examples of shape ", input, ", got ", axis);
    }
    alpha = alpha.with_dim(axis - 1, 1);
  }
  add_weight(options_.alpha_initializer, alpha, {.name = "alpha"}, options_.alpha_regularizer,
             options_.alpha_constraint);
  return input;
}

Tensor PReLU::call(const Tensor& input, CallContext) const {
  return relu(input) - weight(0).value() * relu(negate(input));
}

}  // namespace tutti
