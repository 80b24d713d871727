// Nadam (Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

struct NadamHyperparameters {
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
};

/// Keras's Nadam, t = iteration + 1: u(t) = beta_1 * (1 - 0.5 * 0.96^t), p(t) = u(1) * ... * u(t);
/// m and v as Adam's; m_hat = u(t + 1) * m / (1 - p(t + 1)) + (1 - u(t)) * g / (1 - p(t)); v_hat =
/// v / (1 - beta_2^t); w -= lr * m_hat / (sqrt(v_hat) + epsilon). Slots "momentum" and "velocity".
class NadamRule final : public UpdateRule {
 public:
  explicit NadamRule(NadamHyperparameters hyperparameters = {});
  std::string_view name() const override { return "nadam"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  template <class T>
  void apply_typed(const UpdateArgs& args) const;
  NadamHyperparameters hyper_;
};

class Nadam;
struct NadamOptions {
  using MadeOptimizer = Nadam;
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

/// keras.optimizers.Nadam.
class Nadam final : public Optimizer {
 public:
  explicit Nadam(std::span<const Variable> variables, const NadamOptions& options = {});
};

}  // namespace tutti
