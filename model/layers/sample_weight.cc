// Fitting weights of examples to values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/sample_weight.h"

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

Tensor fitted_weight(const Tensor& sample_weight, const Tensor& values, std::string_view who) {
  Tensor weight = cast(sample_weight, values.dtype()).to(values.device());
  if (weight.rank() == 0) return weight;
  if (weight.rank() == values.rank() + 1 && weight.shape()[-1] == 1) weight = squeeze(weight, -1);
  while (weight.rank() < values.rank()) weight = expand_dims(weight, -1);
  bool fits = weight.rank() == values.rank();
  for (int i = 0; fits && i < weight.rank(); ++i)
    fits = weight.shape()[i] == values.shape()[i] || weight.shape()[i] == 1;
  if (!fits) {
    fail(ErrorCode::kInvalidArgument, who, ": the weights do not fit the values; expected shape ",
         values.shape(), " or one that lacks trailing dimensions, got ", sample_weight.shape());
  }
  return weight;
}

Tensor weighted(const Tensor& values, const Tensor& sample_weight, std::string_view who) {
  if (!sample_weight.defined()) return values;
  return values * fitted_weight(sample_weight, values, who);
}

}  // namespace tutti::internal
