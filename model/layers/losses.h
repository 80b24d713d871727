// Loss functions: one value per example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

struct CrossentropyOptions {
  /// Whether predictions are logits (what Dense(10) gives) or probabilities (after a softmax or
  /// sigmoid). Unlike Keras the default is logits: they are what training should use.
  bool from_logits = true;
  /// Each label distribution is mixed with this much of the uniform one.
  double label_smoothing = 0.0;
};
struct HuberOptions {
  double delta = 1.0;
};

struct FocalOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  /// Examples that are told well count less: times (1 - probability of the label)^gamma.
  double gamma = 2.0;
  /// Weight of label 1 (1 - alpha of label 0); of every class for the categorical loss.
  double alpha = 0.25;
  /// Binary loss: whether alpha is used.
  bool apply_class_balancing = false;
};

/// Each takes labels and predictions and returns one loss per example, [batch] (axes after the
/// first are averaged), also for 0 examples. Differentiable with respect to predictions. Labels are
/// cast to the predictions' type. [batch] and [batch, 1] fit each other. kInvalidArgument names
/// function and both shapes when they do not fit.
namespace losses {

/// labels: class numbers [batch] (or [batch, 1]); predictions [batch, classes].
Tensor sparse_categorical_crossentropy(const Tensor& labels, const Tensor& predictions,
                                       CrossentropyOptions options = {});
/// labels [batch, classes], each row a distribution.
Tensor categorical_crossentropy(const Tensor& labels, const Tensor& predictions,
                                CrossentropyOptions options = {});
/// labels 0 or 1, of the shape of predictions.
Tensor binary_crossentropy(const Tensor& labels, const Tensor& predictions,
                           CrossentropyOptions options = {});

/// binary_crossentropy times (1 - p of the label)^gamma.
Tensor binary_focal_crossentropy(const Tensor& labels, const Tensor& predictions,
                                 FocalOptions options = {});
/// Sum over classes of alpha * (1 - p)^gamma * -label * log(p).
Tensor categorical_focal_crossentropy(const Tensor& labels, const Tensor& predictions,
                                      FocalOptions options = {});

Tensor mean_squared_error(const Tensor& labels, const Tensor& predictions);
Tensor mean_absolute_error(const Tensor& labels, const Tensor& predictions);
/// 100 * |label - prediction| / |label|.
Tensor mean_absolute_percentage_error(const Tensor& labels, const Tensor& predictions);
/// (log(1 + label) - log(1 + prediction))^2; values below 0 count as 0.
Tensor mean_squared_logarithmic_error(const Tensor& labels, const Tensor& predictions);
/// Minus the cosine of the angle between label and prediction (over the last axis).
Tensor cosine_similarity(const Tensor& labels, const Tensor& predictions);
/// Quadratic up to delta, linear beyond.
Tensor huber(const Tensor& labels, const Tensor& predictions, HuberOptions options = {});
/// log(cosh(prediction - label)).
Tensor log_cosh(const Tensor& labels, const Tensor& predictions);
/// max(1 - label * prediction, 0); labels -1 or 1 (0 counts as -1).
Tensor hinge(const Tensor& labels, const Tensor& predictions);
Tensor squared_hinge(const Tensor& labels, const Tensor& predictions);
/// max(best prediction of a wrong class - prediction of the label + 1, 0); labels one-hot.
Tensor categorical_hinge(const Tensor& labels, const Tensor& predictions);
/// Sum over classes of label * log(label / prediction), both distributions.
Tensor kl_divergence(const Tensor& labels, const Tensor& predictions);
/// prediction - label * log(prediction).
Tensor poisson(const Tensor& labels, const Tensor& predictions);

}  // namespace losses
}  // namespace tutti
