// LARS optimizer: SGD with a trust ratio per variable, for large batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// LARS (You et al., "Large batch training of convolutional networks", 2017).

struct LarsHyperparameters {
  double momentum = 0.9;
  double trust_coefficient = 0.001;
  double epsilon = 0.0;
};

/// LARS: rate = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon), or 1 if |w| or |g|
/// is 0; m = momentum * m + lr * rate * (g + weight_decay * w); w -= m. Slot "momentum".
using LarsRule = RuleWith<LarsHyperparameters>;

struct LarsOptions {
  using MadeOptimizer = OptimizerWith<LarsOptions>;
  using Rule = LarsRule;
  LearningRate learning_rate = 0.1;
  double momentum = 0.9;
  double trust_coefficient = 0.001;
  double epsilon = 0.0;
  std::optional<double> weight_decay = 0.0005;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// LARS as in the paper, for convolutional networks with large batches.
using Lars = LarsOptions::MadeOptimizer;

}  // namespace tutti
