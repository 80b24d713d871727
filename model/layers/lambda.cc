// A layer made of a function.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/lambda.h"

namespace tutti {

Lambda::Lambda(Function function, LambdaOptions options)
    : LayerOf(options.name, options.input_shape),
      function_(std::move(function)),
      output_shape_(options.output_shape) {
  if (!function_) fail(ErrorCode::kInvalidArgument, "Lambda: expected a function, got none");
}

Shape Lambda::build(const Shape& input) {
  if (output_shape_) return *output_shape_;
  const Shape result = function_(Tensor::zeros(input.with_front(1), dtype())).shape();
  if (result.rank() == 0 || result[0] != 1) {
    fail(ErrorCode::kInvalidArgument,
         "Lambda: expected a result [batch, ...] with one row for one row, got shape ", result);
  }
  return result.without_axis(0);
}

Tensor Lambda::call(const Tensor& input, CallContext) const { return function_(input); }

}  // namespace tutti
