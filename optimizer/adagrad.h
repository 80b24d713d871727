// Adagrad (Duchi et al., "Adaptive subgradient methods", JMLR 2011).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

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
  template <class T>
  void apply_typed(const UpdateArgs& args) const;
  AdagradHyperparameters hyper_;
};

class Adagrad;
struct AdagradOptions {
  using MadeOptimizer = Adagrad;
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

/// keras.optimizers.Adagrad.
class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(std::span<const Variable> variables, const AdagradOptions& options = {});
};

}  // namespace tutti
