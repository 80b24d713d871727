// Activation functions by name, and as layers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/activations.h"

#include <vector>

#include "core/names.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

// The table of activation functions.

namespace {

const std::vector<ActivationFunction>& activation_table() {
  static const std::vector<ActivationFunction> table = {
      {.name = "linear"},
      {"relu", [](const Tensor& x) { return relu(x); }, FusedActivation::kRelu},
      {"sigmoid", [](const Tensor& x) { return sigmoid(x); }, FusedActivation::kSigmoid},
      {"tanh", [](const Tensor& x) { return tanh(x); }, FusedActivation::kTanh},
      {"softmax", [](const Tensor& x) { return softmax(x); }},
      {"log_softmax", [](const Tensor& x) { return log_softmax(x); }},
      {"softplus", [](const Tensor& x) { return softplus(x); }},
      {"softsign", [](const Tensor& x) { return softsign(x); }},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"selu", [](const Tensor& x) { return selu(x); }},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu_tanh(x); }},
      {"swish", [](const Tensor& x) { return silu(x); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"hard_swish", [](const Tensor& x) { return hard_silu(x); }},
      {"hard_silu", [](const Tensor& x) { return hard_silu(x); }},
      {"mish", [](const Tensor& x) { return x * tanh(softplus(x)); }},
      {"relu6", [](const Tensor& x) { return relu6(x); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2); }},
      {"exponential", [](const Tensor& x) { return exp(x); }},
      {"hard_sigmoid", [](const Tensor& x) { return hard_sigmoid(x); }},
  };
  return table;
}

}  // namespace

ActivationFunction find_activation(std::string_view name) {
  if (name.empty()) return activation_table().front();
  return internal::named_entry(activation_table(), &ActivationFunction::name, name, "activation",
                               "function");
}

// Activations as layers.

Activation::Activation(std::string_view function, LayerOptions options)
    : LayerOf(options.name, options.input_shape), function_(find_activation(function)) {
  made_with(std::string(function));
}

Shape Activation::build(const Shape& input) {
  set_output_activation(function_.name);
  return input;
}

Tensor Activation::call(const Tensor& input, CallContext) const { return function_(input); }

Relu::Relu(ReluOptions options)
    : LayerOf("relu", LayerOptions{options.name, options.input_shape}),
      options_(std::move(options)) {
  if (options_.negative_slope < 0.0 || options_.max_value.value_or(0.0) < 0.0 ||
      options_.threshold < 0.0) {
    fail(ErrorCode::kInvalidArgument,
         "Relu: expected max_value, negative_slope and threshold >= 0, got ",
         options_.max_value.value_or(0.0), ", ", options_.negative_slope, " and ",
         options_.threshold);
  }
  made_with(options_);
}

Tensor Relu::call(const Tensor& input, CallContext context) const {
  // Uses Keras's operations in Keras's order, because they determine the derivatives at the kinks.
  const double threshold = options_.threshold, slope = options_.negative_slope;
  const std::optional<double>& largest = options_.max_value;
  if (threshold == 0.0 && slope != 0.0 && !largest) return leaky_relu(input, slope);
  Tensor y = threshold != 0.0 ? where(greater(input, threshold), input, 0.0)
             : largest == 6.0 ? relu6(input)
                              : Activation::call(input, context);
  if (largest && (threshold != 0.0 || largest != 6.0)) y = clip(y, 0.0, *largest);
  return slope == 0.0 ? y : y - slope * relu(threshold - input);
}

Elu::Elu(EluOptions options)
    : LayerOf("elu", LayerOptions{options.name, options.input_shape}), alpha_(options.alpha) {
  made_with(options);
}

Tensor Elu::call(const Tensor& input, CallContext context) const {
  const Tensor y = Activation::call(input, context);
  return alpha_ == 1.0 ? y : where(greater(input, 0.0), y, y * alpha_);
}

LeakyRelu::LeakyRelu(double negative_slope, LayerOptions options)
    : LayerOf(options.name, options.input_shape), negative_slope_(negative_slope) {
  internal::require(negative_slope >= 0.0, "LeakyRelu: expected negative_slope >= 0, got ",
                    negative_slope);
  made_with(negative_slope);
}

Shape LeakyRelu::build(const Shape& input) { return input; }

Tensor LeakyRelu::call(const Tensor& input, CallContext) const {
  return leaky_relu(input, negative_slope_);
}

PReLU::PReLU(PReLUOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  made_with(options_);
}

Shape PReLU::build(const Shape& input) {
  Shape alpha = input;
  for (const int axis : options_.shared_axes) {
    internal::require(axis >= 1 && axis <= input.rank(), "PReLU: expected shared axes from 1 to ",
                      input.rank(), " for examples of shape ", input, ", got ", axis);
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
