// Batch, layer and group normalisation, and local response normalisation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

/// Result of batch_norm_training(). mean and variance (biased) have shape [channels] and the same
/// type as gamma and beta: x's type, or float32 if x has a 16-bit type.
struct BatchNormResult {
  Tensor y;
  Tensor mean;
  Tensor variance;
};

/// Computes y = gamma * (x - mean) / sqrt(variance + epsilon) + beta for x [..., channels], with
/// the statistics of x over all axes except the last. With 0 rows, y is empty, and mean and
/// variance are 0. Gradients flow through y, mean and variance.
BatchNormResult batch_norm_training(const Operand& x, const Operand& gamma, const Operand& beta,
                                    double epsilon);
/// Returns y as in batch_norm_training(), but with the given mean and variance.
Tensor batch_norm_inference(const Operand& x, const Operand& gamma, const Operand& beta,
                            const Operand& mean, const Operand& variance, double epsilon);

/// Returns the gradients {dx, dgamma, dbeta}, given the gradient dy of batch_norm_training()'s
/// output y.
std::vector<Tensor> batch_norm_grad(const Operand& x, const Operand& gamma, const Operand& mean,
                                    const Operand& variance, const Operand& dy, double epsilon);

struct LayerNormOptions {
  /// Number of trailing axes that are normalized.
  int num_axes = 1;
  double epsilon = 1e-3;
};
struct GroupNormOptions {
  std::int64_t groups = 32;
  double epsilon = 1e-3;
};
/// Returns gamma * (x - mean) / sqrt(variance + epsilon) + beta, with the mean and biased variance
/// of each row over the last `num_axes` axes. gamma and beta have the shape of these axes.
Tensor layer_norm(const Operand& x, const Operand& gamma, const Operand& beta,
                  LayerNormOptions options = {});
/// Same as layer_norm(), but for x [batch, ..., channels] with statistics for each batch row and
/// each of `groups` groups of channels, over all axes in between. gamma and beta are [channels].
/// `groups` must divide the number of channels.
Tensor group_norm(const Operand& x, const Operand& gamma, const Operand& beta,
                  GroupNormOptions options = {});
/// Returns the gradients {dx, dgamma, dbeta} of layer_norm() and group_norm(). mean and variance
/// (with the leading dimensions of x, followed by the groups) and `attributes` are those of the
/// forward call.
std::vector<Tensor> group_norm_grad(const Operand& x, const Operand& gamma, const Operand& mean,
                                    const Operand& variance, const Operand& dy,
                                    const GroupNormAttributes& attributes);

/// Same as tf.nn.local_response_normalization: normalizes along the last axis of x [batch, height,
/// width, channels].
Tensor local_response_normalization(const Operand& x, LrnAttributes attributes = {});
Tensor local_response_normalization_grad(const Operand& x, const Operand& dy,
                                         LrnAttributes attributes);

}  // namespace tutti
