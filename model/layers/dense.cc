// The fully connected layer: one fused product where the activation allows it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dense.h"

#include <algorithm>

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

Dense::Dense(std::int64_t units, DenseOptions options)
    : LayerOf(options.name, options.input_shape),
      units_(units),
      options_(std::move(options)),
      activation_(find_activation(options_.activation)) {
  if (units <= 0)
    fail(ErrorCode::kInvalidArgument, "Dense: expected a positive number of units, got ", units);
}

Shape Dense::build(const Shape& input) {
  if (input.rank() == 0) {
    fail(ErrorCode::kInvalidArgument,
         "expected examples of shape [..., features], got scalars; try Flatten() or "
         "Input{{1}}");
  }
  add_weight(options_.kernel_initializer, {input[-1], units_}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  if (options_.use_bias) {
    add_weight(options_.bias_initializer, {units_}, {.name = "bias"}, options_.bias_regularizer,
               options_.bias_constraint);
  }
  set_output_activation(activation_.name);
  return input.with_dim(-1, units_);
}

Tensor Dense::call(const Tensor& input, CallContext) const {
  const std::int64_t features = weight(0).shape()[0];
  if (input.rank() < 2 || input.shape()[-1] != features) {
    fail(ErrorCode::kInvalidArgument, "its weights were made for ", features,
         " features; expected inputs [batch, ..., ", features, "], got ", input.shape());
  }
  const bool needs_rows = input.rank() > 2;
  const Tensor x = needs_rows
                       ? reshape(input, Shape{input.num_elements() /
                                                  std::max<std::int64_t>(1, input.shape()[-1]),
                                              input.shape()[-1]})
                       : input;
  const Tensor kernel = weight(0).value();
  Tensor y;
  if (options_.use_bias) {
    y = dense(x, kernel, weight(1).value(), activation_.fused);
    if (activation_.fused == FusedActivation::kNone) y = activation_(y);
  } else {
    y = activation_(matmul(x, kernel));
  }
  return needs_rows ? reshape(y, input.shape().with_dim(-1, units_)) : y;
}

}  // namespace tutti
