// SGD optimizer, optionally with momentum or Nesterov momentum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

/// Keras's SGD: w -= lr * g; with momentum m: v = m * v - lr * g, then w += v, or w += m * v - lr *
/// g (Nesterov). Slot "momentum".
class SgdRule final : public FormulaRule {
 public:
  /// Throws kInvalidArgument unless `momentum` is in [0, 1].
  explicit SgdRule(double momentum = 0.0);
  static SgdRule nesterov(double momentum);

  std::string_view name() const override { return "sgd"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;
  bool skips_zero_gradient() const override { return momentum_ == 0.0; }

 private:
  double momentum_;
  bool nesterov_ = false;
};

struct SgdOptions {
  using MadeOptimizer = OptimizerWith<SgdOptions>;
  LearningRate learning_rate = 0.01;
  double momentum = 0.0;
  bool nesterov = false;
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";
};

/// Corresponds to keras.optimizers.SGD: `Sgd(model.trainable_variables(), {.learning_rate = 0.1})`.
using Sgd = SgdOptions::MadeOptimizer;

}  // namespace tutti
