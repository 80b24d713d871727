// Batch normalisation and local response normalisation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"
#include "tutti/tensor/operand.h"

namespace tutti {

/// mean and variance (biased) have shape [channels].
struct BatchNormResult {
  Tensor y;
  Tensor mean;
  Tensor variance;
};

/// y = gamma * (x - mean) / sqrt(variance + epsilon) + beta with the statistics of x over all axes
/// but the last (x [..., channels]). With 0 rows y is empty and mean and variance are 0. Gradients
/// flow through y; and through mean and variance too (they are ordinary outputs).
BatchNormResult batch_norm_training(const Operand& x, const Operand& gamma, const Operand& beta,
                                    double epsilon);
/// With given statistics.
Tensor batch_norm_inference(const Operand& x, const Operand& gamma, const Operand& beta,
                            const Operand& mean, const Operand& variance, double epsilon);

/// Gradients of batch_norm_training's y: {dx, dgamma, dbeta}.
std::vector<Tensor> batch_norm_grad(const Operand& x, const Operand& gamma, const Operand& mean,
                                    const Operand& variance, const Operand& dy, double epsilon);

/// tf.nn.local_response_normalization over the last axis of x [batch, height, width, channels].
Tensor local_response_normalization(const Operand& x, LrnAttributes attributes = {});
Tensor local_response_normalization_grad(const Operand& x, const Operand& dy,
                                         LrnAttributes attributes);

}  // namespace tutti
