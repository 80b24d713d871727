// Steps divided by what squared gradients add up to: Adagrad, Adadelta, RMSprop, Ftrl.
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
class AdagradRule final : public UpdateRule {
 public:
  explicit AdagradRule(AdagradHyperparameters hyperparameters = {});
  std::string_view name() const override { return "adagrad"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;
  bool skips_zero_gradient() const override;

 private:
  AdagradHyperparameters hyper_;
};

struct AdagradOptions {
  using MadeOptimizer = OptimizerWith<AdagradOptions>;
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

  std::unique_ptr<UpdateRule> make_rule() const;
};

/// keras.optimizers.Adagrad.
using Adagrad = AdagradOptions::MadeOptimizer;

// Adadelta (Zeiler, "Adadelta: an adaptive learning rate method", 2012).

struct AdadeltaHyperparameters {
  double rho = 0.95;
  double epsilon = 1e-7;
};

/// Keras's Adadelta: a = rho * a + (1 - rho) * g^2; d = -sqrt(x + epsilon) * g / sqrt(a + epsilon);
/// x = rho * x + (1 - rho) * d^2; w += lr * d. Slots "accumulated_grad" (a) and
/// "accumulated_delta_var" (x).
class AdadeltaRule final : public UpdateRule {
 public:
  explicit AdadeltaRule(AdadeltaHyperparameters hyperparameters = {});
  std::string_view name() const override { return "adadelta"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  AdadeltaHyperparameters hyper_;
};

struct AdadeltaOptions {
  using MadeOptimizer = OptimizerWith<AdadeltaOptions>;
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

  std::unique_ptr<UpdateRule> make_rule() const;
};

/// keras.optimizers.Adadelta. The paper has learning_rate 1.
using Adadelta = AdadeltaOptions::MadeOptimizer;

// RMSprop (Hinton, "Neural networks for machine learning", lecture 6, 2012).

struct RmspropHyperparameters {
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
};

/// Keras's RMSprop: v = rho * v + (1 - rho) * g^2; d = v + epsilon, or centered: a = rho * a + (1 -
/// rho) * g, d = v - a^2 + epsilon; step = lr * g / sqrt(d); w -= step, or with momentum: m =
/// momentum * m + step, w -= m. Slots "velocity", then "momentum" and "average_gradient" if used.
class RmspropRule final : public UpdateRule {
 public:
  explicit RmspropRule(RmspropHyperparameters hyperparameters = {});
  std::string_view name() const override { return "rmsprop"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  RmspropHyperparameters hyper_;
};

struct RmspropOptions {
  using MadeOptimizer = OptimizerWith<RmspropOptions>;
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

  std::unique_ptr<UpdateRule> make_rule() const;
};

/// keras.optimizers.RMSprop.
using Rmsprop = RmspropOptions::MadeOptimizer;

// Ftrl (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013).

struct FtrlHyperparameters {
  double learning_rate_power = -0.5;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  double l2_shrinkage_regularization_strength = 0.0;
  double beta = 0.0;
};

/// Keras's Ftrl with p = -learning_rate_power: n' = n + g^2; z += g + 2 * l2_shrinkage * w - (n'^p
/// - n^p) / lr * w; w = (clip(z, -l1, l1) - z) / (n'^p / lr + 2 * l2 + beta / lr). Slots
/// "accumulator" (n) and "linear" (z). As z begins at 0, a weight is 0 after a first gradient of 0,
/// as Keras's is.
class FtrlRule final : public UpdateRule {
 public:
  explicit FtrlRule(FtrlHyperparameters hyperparameters = {});
  std::string_view name() const override { return "ftrl"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  double l2_at(double rate) const;
  FtrlHyperparameters hyper_;
};

struct FtrlOptions {
  using MadeOptimizer = OptimizerWith<FtrlOptions>;
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

  std::unique_ptr<UpdateRule> make_rule() const;
};

/// keras.optimizers.Ftrl.
using Ftrl = FtrlOptions::MadeOptimizer;

}  // namespace tutti
