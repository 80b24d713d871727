// FTRL optimizer ("follow the regularized leader"), which yields sparse weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// Ftrl (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013).

struct FtrlHyperparameters {
  double learning_rate_power = -0.5;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  double l2_shrinkage_regularization_strength = 0.0;
  double beta = 0.0;
};

/// Keras's Ftrl with p = -learning_rate_power: n' = n + g^2; z += g + 2 * l2_shrinkage * w - w *
/// (n'^p - n^p) / lr; w = (clip(z, -l1, l1) - z) / (n'^p / lr + 2 * l2 + beta / lr). Slots
/// "accumulator" (n) and "linear" (z). As in Keras, z starts at 0, so a weight becomes 0 if its
/// first gradient is 0.
using FtrlRule = RuleWith<FtrlHyperparameters>;

struct FtrlOptions {
  using MadeOptimizer = OptimizerWith<FtrlOptions>;
  using Rule = FtrlRule;
  LearningRate learning_rate = 0.001;
  double learning_rate_power = -0.5;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  double l2_shrinkage_regularization_strength = 0.0;
  double beta = 0.0;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Ftrl.
using Ftrl = FtrlOptions::MadeOptimizer;

}  // namespace tutti
