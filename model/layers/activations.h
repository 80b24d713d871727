// Activation functions by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti {

/// An elementwise function (softmax: over the last axis). A value type.
struct ActivationFunction {
  std::string name = "linear";
  Tensor (*apply)(const Tensor& x) = nullptr;
  /// The same for kernels that apply it to their result; kNone when they cannot.
  FusedActivation fused = FusedActivation::kNone;

  bool is_linear() const { return apply == nullptr; }
  Tensor operator()(const Tensor& x) const { return apply ? apply(x) : x; }
};

/// linear (also ""), relu, sigmoid, tanh, softmax, log_softmax, softplus, softsign, elu, selu,
/// gelu (exact), gelu_tanh, swish (silu), hard_swish (hard_silu), mish, relu6, leaky_relu (slope
/// 0.2), exponential, hard_sigmoid (x / 6 + 0.5, clipped). Throws kInvalidArgument listing them for
/// another name.
ActivationFunction find_activation(std::string_view name);

}  // namespace tutti
