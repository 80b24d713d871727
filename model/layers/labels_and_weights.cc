// Adapts labels and weights to the shape of the predictions, for losses and metrics.
// SPDX-License-Identifier: Apache-2.0
#include "model/layers/labels_and_weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/names.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

// Adapting labels to the shape and type of predictions.

namespace {

/// Returns advice for the error if labels are class numbers where one-hot labels are expected, or
/// vice versa.
std::string remedy(const Shape& labels, const Shape& predictions, std::string_view who) {
  constexpr std::string_view kSparse = "sparse_";
  if (who.starts_with(kSparse) && labels == predictions)
    return concat("; use ", who.substr(kSparse.size()), " for one-hot labels");
  const int classes = predictions.rank() - 1;
  const bool numbers =
      labels.rank() == classes || (labels.rank() == classes + 1 && classes > 0 && labels[-1] == 1);
  if (who.find("categorical") == who.npos || who.starts_with("sparse") || !numbers) return "";
  const bool has_sparse = who == "categorical_crossentropy" || who.ends_with("_accuracy");
  return concat("; use ", has_sparse ? concat("sparse_", who, ", or ") : std::string(),
                "one_hot() of class numbers");
}

[[noreturn]] void fail_shapes(const Operand& labels, const Operand& predictions,
                              std::string_view who, std::string_view expected) {
  fail(ErrorCode::kInvalidArgument, internal::who(who, labels.where),
       ": labels and predictions do not match; expected ", expected, ", got labels ",
       labels.shape(), " and predictions ", predictions.shape(),
       remedy(labels.shape(), predictions.shape(), who));
}

}  // namespace

Tensor same_rank_labels(const Tensor& labels, const Tensor& predictions) {
  const Shape& wanted = predictions.shape();
  if (labels.rank() + 1 == wanted.rank() && wanted[-1] == 1) return expand_dims(labels, -1);
  if (labels.rank() == wanted.rank() + 1 && labels.shape()[-1] == 1) return squeeze(labels, -1);
  return labels;
}

Tensor same_shape_labels(const Operand& labels, const Operand& predictions, std::string_view who) {
  const Tensor fitted = same_rank_labels(cast(labels, predictions.dtype()), predictions.tensor);
  const Shape& wanted = predictions.shape();
  if (!(fitted.shape() == wanted) || wanted.rank() == 0)
    fail_shapes(labels, predictions, who, "equal shapes [batch, ...]");
  return fitted;
}

Tensor class_numbers(const Operand& labels, const Operand& predictions, std::string_view who) {
  Tensor numbers = whole_numbers(labels, who);
  if (numbers.rank() == predictions.shape().rank() && numbers.rank() > 1 &&
      numbers.shape()[-1] == 1)
    numbers = squeeze(numbers, -1);
  if (predictions.shape().rank() < 2 ||
      !(numbers.shape() == predictions.shape().without_axis(-1))) {
    fail_shapes(labels, predictions, who, "class numbers [batch] and predictions [batch, classes]");
  }
  return numbers;
}

Tensor whole_numbers(const Operand& x, std::string_view who) {
  if (x.dtype() == DType::kInt64) return x.tensor;
  if (!is_floating(x.dtype())) return cast(x, DType::kInt64);
  if (!host_reads_at_once(x.tensor)) {
    const Tensor is_whole = equal(floor(x), x);  // false for NaN
    return cast(where(is_whole, x, -1.0), DType::kInt64);
  }
  const std::vector<double> values = x.tensor.to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::floor(values[i]) == values[i]) continue;
    const std::size_t per_row =
        x.shape().rank() == 0 ? 1 : values.size() / static_cast<std::size_t>(x.shape()[0]);
    fail(ErrorCode::kInvalidArgument, internal::who(who, x.where),
         ": expected class numbers (whole numbers), got ", values[i], " in row ", i / per_row,
         "; leave out rows without a label");
  }
  return cast(x, DType::kInt64);
}

void warn_of_binary_labels(const Tensor& labels, std::string_view who) {
  if (!host_reads_at_once(labels)) return;
  const bool fit = visit_dtype(labels.dtype(), [&]<class T>() {
    return std::ranges::all_of(labels.host_span<T>(), [](T label) {
      const auto value = static_cast<float>(label);
      return value >= 0.0f && value <= 1.0f;
    });
  });
  if (fit) return;
  log_warning_once(concat(who,
                          ": expected labels from 0 to 1, got other values; use "
                          "sparse_categorical_crossentropy and sparse_categorical_accuracy "
                          "for class numbers; logged once"));
}

Tensor mean_per_example(const Tensor& values) {
  if (values.rank() == 1) return values;
  internal::require(values.rank() != 0, "loss: expected values [batch, ...], got a scalar");
  std::vector<int> axes;
  for (int axis = 1; axis < values.rank(); ++axis) axes.push_back(axis);
  return reduce_mean(values, {.axes = axes});
}

// Fits example weights to the shape of values.

Tensor fitted_weight(const Tensor& sample_weight, const Tensor& values, std::string_view who) {
  Tensor weight = cast(sample_weight, values.dtype()).to(values.device());
  if (weight.rank() == 0) return weight;
  if (weight.rank() == values.rank() + 1 && weight.shape()[-1] == 1) weight = squeeze(weight, -1);
  while (weight.rank() < values.rank()) weight = expand_dims(weight, -1);
  bool fits = weight.rank() == values.rank();
  for (int i = 0; fits && i < weight.rank(); ++i)
    fits = weight.shape()[i] == values.shape()[i] || weight.shape()[i] == 1;
  internal::require(fits, who, ": the weights do not match the values; expected shape ",
                    values.shape(), " or that shape without trailing dimensions, got ",
                    sample_weight.shape());
  return weight;
}

Tensor weighted(const Tensor& values, const Tensor& sample_weight, std::string_view who) {
  if (!sample_weight.defined()) return values;
  return values * fitted_weight(sample_weight, values, who);
}

// Steps of sequences in losses and metrics.

namespace {

/// Returns the number of axes of weights that distinguish examples or steps. Trailing axes of
/// length 1, other than the first axis, do not count.
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
    fail(ErrorCode::kInvalidArgument, who, ": weights of shape ", sample_weight.shape(),
         ", one per step, do not match the predictions; expected predictions [batch, steps, ...], "
         "got ",
         predictions.shape(), "; use weights of shape [batch]");
  }
  const int rank = std::max(axes > 1 ? axes : 0, mask_.defined() ? mask_.rank() : 0);
  shape_ = Shape(predictions.shape().dims().first(static_cast<std::size_t>(rank)));
  while (mask_.defined() && mask_.rank() < rank) mask_ = expand_dims(mask_, -1);
}

/// Maps [batch, steps, ...] to [batch * steps, ...].
Tensor StepWeights::merged(const Tensor& x, const char* what) const {
  const std::span<const std::int64_t> dims = x.shape().dims(), steps = shape_.dims();
  internal::require(
      dims.size() >= steps.size() && std::equal(steps.begin(), steps.end(), dims.begin()), who_,
      ": expected ", what,
      " [batch, steps, ...] whose leading dimensions are those of the predictions, ", shape_,
      ", because steps have a mask or weights, got ", x.shape());
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
