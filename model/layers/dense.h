// The fully connected layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct DenseOptions {
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

/// [batch, ..., in] -> [batch, ..., units]: activation(x * kernel [in, units] + bias [units]).
class Dense : public LayerOf<Dense> {
 public:
  explicit Dense(std::int64_t units, DenseOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::int64_t units_;
  DenseOptions options_;
  ActivationFunction activation_;
};

}  // namespace tutti
