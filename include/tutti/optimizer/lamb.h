// LAMB optimizer: Adam with a trust ratio per variable, for large batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// LAMB (You et al., "Large batch optimization for deep learning", ICLR 2020).

struct LambHyperparameters {
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-6;
};

/// LAMB, t = iteration + 1: m and v as in Adam; r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t))
/// + epsilon) + weight_decay * w; w -= lr * |w| / |r| * r, or lr * r where either norm is 0. Slots
/// "momentum" and "velocity".
using LambRule = RuleWith<LambHyperparameters>;

struct LambOptions {
  using MadeOptimizer = OptimizerWith<LambOptions>;
  using Rule = LambRule;
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-6;
  std::optional<double> weight_decay = 0.01;  // applied inside the rule
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// LAMB as in the paper, with weight decay inside the trust ratio. Equals keras.optimizers.Lamb
/// with .epsilon = 1e-7 and .weight_decay = 0.
using Lamb = LambOptions::MadeOptimizer;

}  // namespace tutti
