// Loss functions, composed from operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include <algorithm>
#include <numbers>

#include "model/layers/labels_and_weights.h"
#include "tensor/op_checks.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::losses {
namespace {

/// Probabilities are kept this far from 0 and 1 (Keras's epsilon).
constexpr double kEpsilon = 1e-7;

using internal::class_numbers;
using internal::mean_per_example;
using internal::same_shape_labels;

/// Labels 0 or 1, of the shape of predictions.
Tensor binary_labels(const Operand& labels, const Operand& predictions, const char* who) {
  const Tensor fitted = same_shape_labels(labels, predictions, who);
  internal::warn_of_binary_labels(fitted, who);
  return fitted;
}

Tensor clipped(const Operand& probabilities) {
  return clip(probabilities, kEpsilon, 1.0 - kEpsilon);
}

Tensor clipped_labels(const Tensor& labels) { return clip(labels, kEpsilon, 1.0); }

/// predictions [..., classes] -> [rows, classes].
Tensor as_rows(const Operand& predictions) {
  const std::int64_t classes = predictions.shape()[-1];
  return reshape(predictions,
                 Shape{classes > 0 ? predictions.shape().num_elements() / classes : 0, classes});
}

Tensor smoothed(const Tensor& target, double smoothing, double classes) {
  return smoothing == 0.0 ? target : target * (1.0 - smoothing) + smoothing / classes;
}

/// Vectors along the last axis of length 1; those shorter than kEpsilon are divided by it.
Tensor unit_vectors(const Operand& x) {
  const Tensor squares = reduce_sum(square(x), {.axes = {-1}, .keep_dims = true});
  return x * rsqrt(maximum(squares, kEpsilon * kEpsilon));
}

void require_classes(const Operand& predictions, const char* who) {
  if (predictions.shape().rank() >= 2) return;
  fail(ErrorCode::kInvalidArgument, internal::who(who, predictions.where),
       ": expected predictions [batch, classes], got ", predictions.shape());
}

double class_count(const Operand& predictions) {
  return static_cast<double>(std::max<std::int64_t>(1, predictions.shape()[-1]));
}

/// Labels -1 and 1; 0 becomes -1.
Tensor signs(const Tensor& labels) { return where(equal(labels, 0.0), labels - 1.0, labels); }

}  // namespace

Tensor sparse_categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                       CrossentropyOptions options) {
  const char* who = "sparse_categorical_crossentropy";
  const Tensor classes = class_numbers(labels, predictions, who);
  if (options.label_smoothing != 0.0) {
    fail(ErrorCode::kInvalidArgument, internal::who(who, labels.where),
         ": label_smoothing needs distributions; try categorical_crossentropy of one_hot labels");
  }
  const Tensor rows = as_rows(predictions);
  // The softmax of log-probabilities scales them to a sum of 1, for the gradient, too: Keras's
  // rule.
  const Tensor logits = options.from_logits ? rows : log(clipped(rows));
  const Tensor loss = sparse_softmax_cross_entropy(Operand(reshape(classes, {-1}), labels.where),
                                                   Operand(logits, labels.where));
  return mean_per_example(reshape(loss, classes.shape()));
}

Tensor categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                CrossentropyOptions options) {
  const char* who = "categorical_crossentropy";
  require_classes(predictions, who);
  const Tensor target = smoothed(same_shape_labels(labels, predictions, who),
                                 options.label_smoothing, class_count(predictions));
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

Tensor binary_crossentropy(const Operand& labels, const Operand& predictions,
                           CrossentropyOptions options) {
  const Tensor target = smoothed(binary_labels(labels, predictions, "binary_crossentropy"),
                                 options.label_smoothing, 2.0);
  if (options.from_logits) return mean_per_example(sigmoid_cross_entropy(target, predictions));
  const Tensor p = clipped(predictions);
  return mean_per_example(negate(target * log(p) + (1.0 - target) * log(1.0 - p)));
}

Tensor binary_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                 FocalOptions options) {
  const Tensor target = smoothed(binary_labels(labels, predictions, "binary_focal_crossentropy"),
                                 options.label_smoothing, 2.0);
  const Tensor unclipped = options.from_logits ? sigmoid(predictions) : predictions.tensor;
  const Tensor p = clipped(unclipped);
  const Tensor p_of_label = target * unclipped + (1.0 - target) * (1.0 - unclipped);
  const Tensor crossentropy = options.from_logits
                                  ? sigmoid_cross_entropy(target, predictions)
                                  : negate(target * log(p) + (1.0 - target) * log(1.0 - p));
  // Keras has no limit here; where it matters the cross-entropy is almost 0, and gradients stay
  // finite for every gamma.
  Tensor loss = pow(maximum(1.0 - p_of_label, kEpsilon), options.gamma) * crossentropy;
  if (options.apply_class_balancing)
    loss = loss * (target * options.alpha + (1.0 - target) * (1.0 - options.alpha));
  return mean_per_example(loss);
}

Tensor categorical_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                      FocalOptions options) {
  const char* who = "categorical_focal_crossentropy";
  require_classes(predictions, who);
  const Tensor target = smoothed(same_shape_labels(labels, predictions, who),
                                 options.label_smoothing, class_count(predictions));
  const Tensor p =
      clipped(options.from_logits ? softmax(predictions)
                                  : predictions / reduce_sum(predictions, {{-1}, true}));
  const Tensor terms = pow(1.0 - p, options.gamma) * target * log(p) * -options.alpha;
  return mean_per_example(reduce_sum(terms, {.axes = {-1}}));
}

Tensor mean_squared_error(const Operand& labels, const Operand& predictions) {
  return mean_per_example(
      square(predictions - same_shape_labels(labels, predictions, "mean_squared_error")));
}

Tensor mean_absolute_error(const Operand& labels, const Operand& predictions) {
  return mean_per_example(
      abs(predictions - same_shape_labels(labels, predictions, "mean_absolute_error")));
}

Tensor mean_absolute_percentage_error(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "mean_absolute_percentage_error");
  return mean_per_example(abs(target - predictions) / maximum(abs(target), kEpsilon)) * 100.0;
}

Tensor mean_squared_logarithmic_error(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "mean_squared_logarithmic_error");
  return mean_per_example(
      square(log(maximum(target, kEpsilon) + 1.0) - log(maximum(predictions, kEpsilon) + 1.0)));
}

Tensor cosine_similarity(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "cosine_similarity");
  require_classes(predictions, "cosine_similarity");
  const Tensor products = unit_vectors(target) * unit_vectors(predictions);
  return mean_per_example(negate(reduce_sum(products, {.axes = {-1}})));
}

Tensor huber(const Operand& labels, const Operand& predictions, HuberOptions options) {
  const Tensor error = abs(predictions - same_shape_labels(labels, predictions, "huber"));
  const Tensor quadratic = minimum(error, options.delta);
  return mean_per_example(square(quadratic) * 0.5 + (error - quadratic) * options.delta);
}

Tensor log_cosh(const Operand& labels, const Operand& predictions) {
  const Tensor error = predictions - same_shape_labels(labels, predictions, "log_cosh");
  // cosh overflows early; this form does not.
  return mean_per_example(error + softplus(error * -2.0) - std::numbers::ln2);
}

Tensor hinge(const Operand& labels, const Operand& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "hinge"));
  return mean_per_example(maximum(1.0 - target * predictions, 0.0));
}

Tensor squared_hinge(const Operand& labels, const Operand& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "squared_hinge"));
  return mean_per_example(square(maximum(1.0 - target * predictions, 0.0)));
}

Tensor categorical_hinge(const Operand& labels, const Operand& predictions) {
  require_classes(predictions, "categorical_hinge");
  const Tensor target = same_shape_labels(labels, predictions, "categorical_hinge");
  const Tensor right = reduce_sum(target * predictions, {.axes = {-1}});
  const Tensor wrong = reduce_max((1.0 - target) * predictions, {.axes = {-1}});
  return mean_per_example(maximum(wrong - right + 1.0, 0.0));
}

Tensor kl_divergence(const Operand& labels, const Operand& predictions) {
  const Tensor target = clipped_labels(same_shape_labels(labels, predictions, "kl_divergence"));
  const Tensor terms = target * log(target / clip(predictions, kEpsilon, 1.0));
  return mean_per_example(terms.rank() > 1 ? reduce_sum(terms, {.axes = {-1}}) : terms);
}

Tensor poisson(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "poisson");
  return mean_per_example(predictions - target * log(predictions + kEpsilon));
}

}  // namespace tutti::losses
