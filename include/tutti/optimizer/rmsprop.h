// RMSprop optimizer, which divides steps by the root of a moving average of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// RMSprop (Hinton, "Neural networks for machine learning", lecture 6, 2012).

struct RmspropHyperparameters {
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
};

/// Keras's RMSprop: v = rho * v + (1 - rho) * g^2; d = v + epsilon (if centered: a = rho * a + (1 -
/// rho) * g and d = v - a^2 + epsilon); step = lr * g / sqrt(d); w -= step (with momentum: m =
/// momentum * m + step and w -= m). Slots "velocity" and, if used, "momentum", "average_gradient".
using RmspropRule = RuleWith<RmspropHyperparameters>;

struct RmspropOptions {
  using MadeOptimizer = OptimizerWith<RmspropOptions>;
  using Rule = RmspropRule;
  LearningRate learning_rate = 0.001;
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.RMSprop.
using Rmsprop = RmspropOptions::MadeOptimizer;

}  // namespace tutti
