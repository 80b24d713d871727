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

Tensor mean_squared_error(const Tensor& labels, const Tensor& predictions);
Tensor mean_absolute_error(const Tensor& labels, const Tensor& predictions);
/// Quadratic up to delta, linear beyond.
Tensor huber(const Tensor& labels, const Tensor& predictions, HuberOptions options = {});
/// log(cosh(prediction - label)).
Tensor log_cosh(const Tensor& labels, const Tensor& predictions);
/// max(1 - label * prediction, 0); labels -1 or 1 (0 counts as -1).
Tensor hinge(const Tensor& labels, const Tensor& predictions);
Tensor squared_hinge(const Tensor& labels, const Tensor& predictions);
/// Sum over classes of label * log(label / prediction), both distributions.
Tensor kl_divergence(const Tensor& labels, const Tensor& predictions);
/// prediction - label * log(prediction).
Tensor poisson(const Tensor& labels, const Tensor& predictions);

}  // namespace losses
}  // namespace tutti
