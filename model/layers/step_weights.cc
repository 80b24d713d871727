// What tells the steps of sequences apart in losses and metrics.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/step_weights.h"

#include <algorithm>
#include <vector>

#include "tutti/model/layers/masks.h"
#include "tutti/model/layers/sample_weight.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

/// Axes of weights that tell examples or steps apart: a last axis of 1 does not.
int axes_of_weights(const Tensor& sample_weight) {
  int axes = sample_weight.defined() ? sample_weight.rank() : 0;
  while (axes > 1 && sample_weight.shape()[axes - 1] == 1) --axes;
  return axes;
}

}  // namespace

StepWeights::StepWeights(const Tensor& predictions, const Tensor& sample_weight,
                         std::string_view who)
    : mask_(MaskScope::mask_of(predictions)), sample_weight_(sample_weight), who_(who) {
  const int axes = axes_of_weights(sample_weight);
  if (axes < 2 && !mask_.defined()) return;
  if (axes > 1 && predictions.rank() <= axes) {
    fail(ErrorCode::kInvalidArgument, who, ": weights ", sample_weight.shape(),
         " of steps do not fit the predictions; expected predictions [batch, steps, ...], got ",
         predictions.shape(), "; try weights [batch]");
  }
  const int rank = std::max(axes > 1 ? axes : 0, mask_.defined() ? mask_.rank() : 0);
  shape_ = Shape(predictions.shape().dims().first(static_cast<std::size_t>(rank)));
  while (mask_.defined() && mask_.rank() < rank) mask_ = expand_dims(mask_, -1);
}

/// [batch, steps, ...] -> [batch * steps, ...].
Tensor StepWeights::merged(const Tensor& x, const char* what) const {
  const std::span<const std::int64_t> dims = x.shape().dims(), steps = shape_.dims();
  if (dims.size() < steps.size() || !std::equal(steps.begin(), steps.end(), dims.begin())) {
    fail(ErrorCode::kInvalidArgument, who_, ": a mask or weights tell the steps ", shape_,
         " of the predictions apart; expected ", what, " [batch, steps, ...], got ", x.shape());
  }
  std::vector<std::int64_t> one_axis = {shape_.num_elements()};
  one_axis.insert(one_axis.end(), dims.begin() + shape_.rank(), dims.end());
  return reshape(x, Shape(one_axis));
}

Tensor StepWeights::values(const std::function<Tensor(const Tensor&, const Tensor&)>& per_example,
                           const Tensor& labels, const Tensor& predictions) const {
  const Tensor each =
      reshape(per_example(merged(labels, "labels"), merged(predictions, "predictions")), shape_);
  return mask_.defined() ? where(mask_, each, 0.0) : each;
}

Tensor StepWeights::counted(DType dtype, Device device) const {
  if (!mask_.defined()) return Tensor::ones(shape_, dtype, device);
  return broadcast_to(cast(mask_, dtype), shape_);
}

Tensor StepWeights::weights() const {
  const Device device = mask_.defined() ? mask_.device() : sample_weight_.device();
  return weighted(counted(DType::kFloat64, device), sample_weight_, who_);
}

Tensor StepWeights::mean_of_examples(const Tensor& values) const {
  const Tensor count = counted(values.dtype(), values.device());
  const Tensor total = weighted(values, sample_weight_, who_);
  if (shape_.rank() == 1) return total;
  std::vector<int> steps;
  for (int axis = 1; axis < shape_.rank(); ++axis) steps.push_back(axis);
  return reduce_sum(total, {.axes = steps}) / maximum(reduce_sum(count, {.axes = steps}), 1.0);
}

std::int64_t StepWeights::per_example() const {
  return shape_[0] == 0 ? 1 : shape_.num_elements() / shape_[0];
}

}  // namespace tutti::internal
