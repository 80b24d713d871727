// Adagrad optimizer, which divides steps by the square root of the sum of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// Adagrad (Duchi et al., "Adaptive subgradient methods", JMLR 2011).

struct AdagradHyperparameters {
  double initial_accumulator_value = 0.1;
  double epsilon = 1e-7;
};

/// Keras's Adagrad: a += g^2; w -= lr * g / sqrt(a + epsilon). Slot "accumulator".
using AdagradRule = RuleWith<AdagradHyperparameters>;

struct AdagradOptions {
  using MadeOptimizer = OptimizerWith<AdagradOptions>;
  using Rule = AdagradRule;
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  double epsilon = 1e-7;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Adagrad.
using Adagrad = AdagradOptions::MadeOptimizer;

}  // namespace tutti
