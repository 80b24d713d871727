// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

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
class AdamRule final : public UpdateRule {
 public:
  explicit AdamRule(AdamHyperparameters hyperparameters = {});
  std::string_view name() const override { return "adam"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  template <class T>
  void apply_typed(const UpdateArgs& args) const;
  AdamHyperparameters hyper_;
};

class Adam;
struct AdamOptions {
  using MadeOptimizer = Adam;
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

/// keras.optimizers.Adam.
class Adam final : public Optimizer {
 public:
  explicit Adam(std::span<const Variable> variables, const AdamOptions& options = {});
};

}  // namespace tutti
