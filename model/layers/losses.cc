// Loss functions, composed from operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include <cmath>
#include <numbers>

#include "tutti/model/layers/label_shapes.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::losses {
namespace {

/// Probabilities are kept this far from 0 and 1 (Keras's epsilon).
constexpr double kEpsilon = 1e-7;

using internal::class_numbers;
using internal::mean_per_example;
using internal::same_shape_labels;

Tensor clipped(const Tensor& probabilities) {
  return clip(probabilities, kEpsilon, 1.0 - kEpsilon);
}

Tensor clipped_labels(const Tensor& labels) { return clip(labels, kEpsilon, 1.0); }

/// predictions [..., classes] -> [rows, classes].
Tensor as_rows(const Tensor& predictions) {
  const std::int64_t classes = predictions.shape()[-1];
  return reshape(predictions,
                 Shape{classes > 0 ? predictions.num_elements() / classes : 0, classes});
}

/// Labels -1 and 1; 0 becomes -1.
Tensor signs(const Tensor& labels) { return where(equal(labels, 0.0), labels - 1.0, labels); }

}  // namespace

Tensor sparse_categorical_crossentropy(const Tensor& labels, const Tensor& predictions,
                                       CrossentropyOptions options) {
  const char* who = "sparse_categorical_crossentropy";
  const Tensor classes = class_numbers(labels, predictions, who);
  if (options.label_smoothing != 0.0) {
    fail(ErrorCode::kInvalidArgument, who,
         ": label_smoothing needs distributions; try categorical_crossentropy of one_hot labels");
  }
  const Tensor rows = as_rows(predictions);
  // The softmax of log-probabilities scales them to a sum of 1, for the gradient, too: Keras's
  // rule.
  const Tensor logits = options.from_logits ? rows : log(clipped(rows));
  const Tensor loss = sparse_softmax_cross_entropy(reshape(classes, {-1}), logits);
  return mean_per_example(reshape(loss, classes.shape()));
}

Tensor categorical_crossentropy(const Tensor& labels, const Tensor& predictions,
                                CrossentropyOptions options) {
  Tensor target = same_shape_labels(labels, predictions, "categorical_crossentropy");
  if (predictions.rank() < 2) {
    fail(ErrorCode::kInvalidArgument,
         "categorical_crossentropy: expected predictions [batch, classes], got ",
         predictions.shape());
  }
  if (options.label_smoothing != 0.0) {
    const double classes = static_cast<double>(predictions.shape()[-1]);
    target = target * (1.0 - options.label_smoothing) + options.label_smoothing / classes;
  }
  const Tensor rows = as_rows(predictions);
  const Tensor target_rows = as_rows(target);
  if (options.from_logits) {
    return mean_per_example(
        reshape(softmax_cross_entropy(target_rows, rows), predictions.shape().without_axis(-1)));
  }
  const Tensor scaled = rows / reduce_sum(rows, {.axes = {1}, .keep_dims = true});
  const Tensor loss = negate(reduce_sum(target_rows * log(clipped(scaled)), {.axes = {1}}));
  return mean_per_example(reshape(loss, predictions.shape().without_axis(-1)));
}

Tensor binary_crossentropy(const Tensor& labels, const Tensor& predictions,
                           CrossentropyOptions options) {
  Tensor target = same_shape_labels(labels, predictions, "binary_crossentropy");
  if (options.label_smoothing != 0.0)
    target = target * (1.0 - options.label_smoothing) + 0.5 * options.label_smoothing;
  if (options.from_logits) return mean_per_example(sigmoid_cross_entropy(target, predictions));
  const Tensor p = clipped(predictions);
  return mean_per_example(negate(target * log(p) + (1.0 - target) * log(1.0 - p)));
}

Tensor mean_squared_error(const Tensor& labels, const Tensor& predictions) {
  return mean_per_example(
      square(predictions - same_shape_labels(labels, predictions, "mean_squared_error")));
}

Tensor mean_absolute_error(const Tensor& labels, const Tensor& predictions) {
  return mean_per_example(
      abs(predictions - same_shape_labels(labels, predictions, "mean_absolute_error")));
}

Tensor huber(const Tensor& labels, const Tensor& predictions, HuberOptions options) {
  const Tensor error = abs(predictions - same_shape_labels(labels, predictions, "huber"));
  const Tensor quadratic = minimum(error, options.delta);
  return mean_per_example(square(quadratic) * 0.5 + (error - quadratic) * options.delta);
}

Tensor log_cosh(const Tensor& labels, const Tensor& predictions) {
  const Tensor error = predictions - same_shape_labels(labels, predictions, "log_cosh");
  // cosh overflows early; this form does not.
  return mean_per_example(error + softplus(error * -2.0) - std::numbers::ln2);
}

Tensor hinge(const Tensor& labels, const Tensor& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "hinge"));
  return mean_per_example(maximum(1.0 - target * predictions, 0.0));
}

Tensor squared_hinge(const Tensor& labels, const Tensor& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "squared_hinge"));
  return mean_per_example(square(maximum(1.0 - target * predictions, 0.0)));
}

Tensor kl_divergence(const Tensor& labels, const Tensor& predictions) {
  const Tensor target = clipped_labels(same_shape_labels(labels, predictions, "kl_divergence"));
  const Tensor terms = target * log(target / clip(predictions, kEpsilon, 1.0));
  return mean_per_example(terms.rank() > 1 ? reduce_sum(terms, {.axes = {-1}}) : terms);
}

Tensor poisson(const Tensor& labels, const Tensor& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "poisson");
  return mean_per_example(predictions - target * log(predictions + kEpsilon));
}

}  // namespace tutti::losses
