// Adam, AdamW and Nadam.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).

struct AdamHyperparameters {
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool amsgrad = false;
};

/// Keras's Adam, t = iteration + 1: alpha = lr * sqrt(1 - beta_2^t) / (1 - beta_1^t); m += (g - m)
/// * (1 - beta_1); v += (g * g - v) * (1 - beta_2); w -= m * alpha / (sqrt(v) + epsilon), with the
/// largest v so far instead of v under amsgrad. Slots "momentum", "velocity" and, under amsgrad,
/// "velocity_hat".
using AdamRule = RuleWith<AdamHyperparameters>;

struct AdamOptions {
  using MadeOptimizer = OptimizerWith<AdamOptions>;
  using Rule = AdamRule;
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool amsgrad = false;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Adam.
using Adam = AdamOptions::MadeOptimizer;

// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).

struct AdamWOptions {
  using MadeOptimizer = OptimizerWith<AdamWOptions>;
  using Rule = AdamRule;
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool amsgrad = false;
  std::optional<double> weight_decay = 0.004;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Returns the shared options, with the name "adamw" if the name is empty. Throws kInvalidArgument
/// if weight_decay is not set.
OptimizerOptions shared_options(const AdamWOptions& options);

/// Adam with weight decay: w -= w * weight_decay * lr, then Adam's rule. Corresponds to
/// keras.optimizers.AdamW.
using AdamW = AdamWOptions::MadeOptimizer;

// Nadam (Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016).

struct NadamHyperparameters {
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
};

/// Keras's Nadam, t = iteration + 1: u(t) = beta_1 * (1 - 0.5 * 0.96^t), p(t) = u(1) * ... * u(t);
/// m and v as in Adam; m_hat = u(t + 1) * m / (1 - p(t + 1)) + (1 - u(t)) * g / (1 - p(t)); v_hat =
/// v / (1 - beta_2^t); w -= lr * m_hat / (sqrt(v_hat) + epsilon). Slots "momentum" and "velocity".
using NadamRule = RuleWith<NadamHyperparameters>;

struct NadamOptions {
  using MadeOptimizer = OptimizerWith<NadamOptions>;
  using Rule = NadamRule;
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.Nadam.
using Nadam = NadamOptions::MadeOptimizer;

}  // namespace tutti
