// Bringing labels to the shape and type of predictions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/label_shapes.h"

#include <string>
#include <vector>

#include "tutti/core/text.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

/// What to try where class numbers were given instead of one-hot labels.
std::string remedy(const Tensor& labels, const Tensor& predictions, std::string_view who) {
  const int classes = predictions.rank() - 1;
  const bool numbers = labels.rank() == classes ||
                       (labels.rank() == classes + 1 && classes > 0 && labels.shape()[-1] == 1);
  if (who.find("categorical") == who.npos || who.starts_with("sparse") || !numbers) return "";
  const bool has_sparse = who == "categorical_crossentropy" || who.ends_with("_accuracy");
  return concat("; try ", has_sparse ? concat("sparse_", who, ", or ") : std::string(),
                "one_hot() of class numbers");
}

[[noreturn]] void fail_shapes(const Tensor& labels, const Tensor& predictions, std::string_view who,
                              std::string_view expected) {
  fail(ErrorCode::kInvalidArgument, who, ": labels and predictions do not fit; expected ", expected,
       ", got labels ", labels.shape(), " and predictions ", predictions.shape(),
       remedy(labels, predictions, who));
}

}  // namespace

Tensor same_shape_labels(const Tensor& labels, const Tensor& predictions, std::string_view who) {
  Tensor fitted = cast(labels, predictions.dtype());
  const Shape& wanted = predictions.shape();
  if (fitted.rank() + 1 == wanted.rank() && wanted[-1] == 1) fitted = expand_dims(fitted, -1);
  if (fitted.rank() == wanted.rank() + 1 && fitted.shape()[-1] == 1) fitted = squeeze(fitted, -1);
  if (!(fitted.shape() == wanted) || wanted.rank() == 0)
    fail_shapes(labels, predictions, who, "equal shapes [batch, ...]");
  return fitted;
}

Tensor class_numbers(const Tensor& labels, const Tensor& predictions, std::string_view who) {
  Tensor numbers = labels.dtype() == DType::kInt64 ? labels : cast(labels, DType::kInt64);
  if (numbers.rank() == predictions.rank() && numbers.rank() > 1 && numbers.shape()[-1] == 1)
    numbers = squeeze(numbers, -1);
  if (predictions.rank() < 2 || !(numbers.shape() == predictions.shape().without_axis(-1))) {
    fail_shapes(labels, predictions, who, "class numbers [batch] and predictions [batch, classes]");
  }
  return numbers;
}

Tensor mean_per_example(const Tensor& values) {
  if (values.rank() == 1) return values;
  if (values.rank() == 0) {
    fail(ErrorCode::kInvalidArgument, "loss: expected values [batch, ...], got a scalar");
  }
  std::vector<int> axes;
  for (int axis = 1; axis < values.rank(); ++axis) axes.push_back(axis);
  return reduce_mean(values, {.axes = axes});
}

}  // namespace tutti::internal
