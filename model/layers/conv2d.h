// The two-dimensional convolution layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

namespace tutti {

struct Conv2DOptions {
  Size2D strides = 1;
  std::string padding = "valid";  // or "same"
  /// How far the window's elements stand apart.
  Size2D dilation_rate = 1;
  /// Channels and filters are cut into so many parts, each by itself.
  std::int64_t groups = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, height, width, in] -> [batch, out_height, out_width, filters], kernel [kernel_height,
/// kernel_width, in / groups, filters], bias [filters]. Bias and relu, sigmoid or tanh are computed
/// in the same pass.
class Conv2D : public LayerOf<Conv2D> {
 public:
  Conv2D(std::int64_t filters, Size2D kernel_size, Conv2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t filters_;
  Size2D kernel_size_;
  Conv2DOptions options_;
  Padding padding_;
  ActivationFunction activation_;
};

}  // namespace tutti
