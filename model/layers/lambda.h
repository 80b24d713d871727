// A layer made of a function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct LambdaOptions {
  /// Shape of a result's example; default: found by calling the function with one row of zeros.
  std::optional<Shape> output_shape = std::nullopt;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// A function [batch, ...] -> [batch, ...] of tensor operations as a layer without weights. It runs
/// on several threads at once.
class Lambda : public LayerOf<Lambda> {
 public:
  using Function = std::function<Tensor(const Tensor& input)>;
  explicit Lambda(Function function, LambdaOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Function function_;
  std::optional<Shape> output_shape_;
};

}  // namespace tutti
