// Lion optimizer, which steps along the sign of a moving average of the gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023).

struct LionHyperparameters {
  double beta_1 = 0.9;
  double beta_2 = 0.99;
};

/// Keras's Lion: w -= lr * sign(beta_1 * m + (1 - beta_1) * g); m = beta_2 * m + (1 - beta_2) * g.
/// Slot "momentum".
using LionRule = RuleWith<LionHyperparameters>;

struct LionOptions {
  using MadeOptimizer = OptimizerWith<LionOptions>;
  using Rule = LionRule;
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.99;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Lion. Needs a learning rate 3 to 10 times smaller than Adam's.
using Lion = LionOptions::MadeOptimizer;

}  // namespace tutti
