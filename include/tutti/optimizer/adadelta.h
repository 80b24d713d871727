// Adadelta optimizer, whose steps do not depend on the scale of the gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// Adadelta (Zeiler, "Adadelta: an adaptive learning rate method", 2012).

struct AdadeltaHyperparameters {
  double rho = 0.95;
  double epsilon = 1e-7;
};

/// Keras's Adadelta: a = rho * a + (1 - rho) * g^2; d = -sqrt(x + epsilon) * g / sqrt(a + epsilon);
/// x = rho * x + (1 - rho) * d^2; w += lr * d. Slots "accumulated_grad" (a) and
/// "accumulated_delta_var" (x).
using AdadeltaRule = RuleWith<AdadeltaHyperparameters>;

struct AdadeltaOptions {
  using MadeOptimizer = OptimizerWith<AdadeltaOptions>;
  using Rule = AdadeltaRule;
  LearningRate learning_rate = 0.001;
  double rho = 0.95;
  double epsilon = 1e-7;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Adadelta. The paper uses learning_rate 1.
using Adadelta = AdadeltaOptions::MadeOptimizer;

}  // namespace tutti
