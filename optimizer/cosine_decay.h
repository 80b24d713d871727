// Cosine learning rates, with warm-up and with restarts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

struct CosineDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double alpha = 0.0;  // the last rate as a share of the first
  std::optional<double> warmup_target = std::nullopt;
  std::int64_t warmup_steps = 0;
};

/// first * ((1 - alpha) * (1 + cos(pi * iteration / decay_steps)) / 2 + alpha), then first * alpha.
/// With warmup_target: a line from initial_learning_rate to it in warmup_steps, then the same from
/// there. keras.optimizers.schedules.CosineDecay.
class CosineDecay final : public LearningRateSchedule {
 public:
  explicit CosineDecay(CosineDecayOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  CosineDecayOptions options_;
};

struct CosineDecayRestartsOptions {
  double initial_learning_rate = 0.1;
  std::int64_t first_decay_steps = 1;
  double t_mul = 2.0;  // each period is so many times as long as the one before
  double m_mul = 1.0;  // and begins with so many times its rate
  double alpha = 0.0;
};

/// Periods of a cosine (Loshchilov and Hutter, "SGDR", ICLR 2017). Keras's form: rate = initial *
/// ((1 - alpha) * m_mul^period * (1 + cos(pi * share of the period)) / 2 + alpha).
/// keras.optimizers.schedules.CosineDecayRestarts.
class CosineDecayRestarts final : public LearningRateSchedule {
 public:
  explicit CosineDecayRestarts(CosineDecayRestartsOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  CosineDecayRestartsOptions options_;
};

}  // namespace tutti
