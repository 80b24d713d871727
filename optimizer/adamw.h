// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/optimizer.h"

namespace tutti {

class AdamW;
struct AdamWOptions {
  using MadeOptimizer = AdamW;
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

/// Adam with weight decay: w -= w * weight_decay * lr, then Adam's rule. keras.optimizers.AdamW.
class AdamW final : public Optimizer {
 public:
  /// Throws kInvalidArgument without weight_decay.
  explicit AdamW(std::span<const Variable> variables, const AdamWOptions& options = {});
};

}  // namespace tutti
