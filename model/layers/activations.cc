// The table of activation functions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/activations.h"

#include <vector>

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/softmax.h"

namespace tutti {
namespace {

Tensor relu_of(const Tensor& x) { return relu(x); }
Tensor sigmoid_of(const Tensor& x) { return sigmoid(x); }
Tensor tanh_of(const Tensor& x) { return tanh(x); }
Tensor softmax_of(const Tensor& x) { return softmax(x); }
Tensor log_softmax_of(const Tensor& x) { return log_softmax(x); }
Tensor softplus_of(const Tensor& x) { return softplus(x); }
Tensor softsign_of(const Tensor& x) { return x / (abs(x) + 1.0); }
Tensor elu_of(const Tensor& x) { return elu(x); }
Tensor selu_of(const Tensor& x) {
  constexpr double kScale = 1.0507009873554804934;
  constexpr double kAlpha = 1.6732632423543772848;
  return (maximum(x, 0.0) + (elu(minimum(x, 0.0)) * kAlpha)) * kScale;
}
Tensor gelu_of(const Tensor& x) { return gelu(x); }
Tensor swish_of(const Tensor& x) { return x * sigmoid(x); }
Tensor exp_of(const Tensor& x) { return exp(x); }
Tensor relu6_of(const Tensor& x) { return clip(x, 0.0, 6.0); }
Tensor leaky_relu_of(const Tensor& x) { return maximum(x, x * 0.2); }
Tensor gelu_tanh_of(const Tensor& x) {
  const double kSqrtTwoOverPi = 0.79788456080286535588;
  return x * 0.5 * (tanh((x + x * square(x) * 0.044715) * kSqrtTwoOverPi) + 1.0);
}
Tensor mish_of(const Tensor& x) { return x * tanh(softplus(x)); }
Tensor hard_swish_of(const Tensor& x) { return x * clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0); }
Tensor hard_sigmoid_of(const Tensor& x) { return clip(x / 6.0 + 0.5, 0.0, 1.0); }

const std::vector<ActivationFunction>& activation_table() {
  static const std::vector<ActivationFunction> table = {
      {"linear", nullptr, FusedActivation::kNone},
      {"relu", &relu_of, FusedActivation::kRelu},
      {"sigmoid", &sigmoid_of, FusedActivation::kSigmoid},
      {"tanh", &tanh_of, FusedActivation::kTanh},
      {"softmax", &softmax_of, FusedActivation::kNone},
      {"log_softmax", &log_softmax_of, FusedActivation::kNone},
      {"softplus", &softplus_of, FusedActivation::kNone},
      {"softsign", &softsign_of, FusedActivation::kNone},
      {"elu", &elu_of, FusedActivation::kNone},
      {"selu", &selu_of, FusedActivation::kNone},
      {"gelu", &gelu_of, FusedActivation::kNone},
      {"gelu_tanh", &gelu_tanh_of, FusedActivation::kNone},
      {"swish", &swish_of, FusedActivation::kNone},
      {"silu", &swish_of, FusedActivation::kNone},
      {"hard_swish", &hard_swish_of, FusedActivation::kNone},
      {"hard_silu", &hard_swish_of, FusedActivation::kNone},
      {"mish", &mish_of, FusedActivation::kNone},
      {"relu6", &relu6_of, FusedActivation::kNone},
      {"leaky_relu", &leaky_relu_of, FusedActivation::kNone},
      {"exponential", &exp_of, FusedActivation::kNone},
      {"hard_sigmoid", &hard_sigmoid_of, FusedActivation::kNone},
  };
  return table;
}

}  // namespace

ActivationFunction find_activation(std::string_view name) {
  if (name.empty()) return activation_table().front();
  std::vector<std::string> names;
  for (const ActivationFunction& function : activation_table()) {
    if (function.name == name) return function;
    names.push_back(function.name);
  }
  fail(ErrorCode::kInvalidArgument, "activation: no function is named '", name,
       "'; expected one of ", join(names));
}

}  // namespace tutti
