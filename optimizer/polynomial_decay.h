// Learning rates that fall as a power of what is left, and as the inverse of time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

struct PolynomialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double end_learning_rate = 0.0001;
  double power = 1.0;
  bool cycle = false;
};

/// (initial - end) * (1 - min(iteration, n) / n)^power + end with n = decay_steps; with cycle n is
/// the next multiple of decay_steps instead. keras.optimizers.schedules.PolynomialDecay.
class PolynomialDecay final : public LearningRateSchedule {
 public:
  explicit PolynomialDecay(PolynomialDecayOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  PolynomialDecayOptions options_;
};

struct InverseTimeDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double decay_rate = 0.5;
  bool staircase = false;
};

/// initial / (1 + decay_rate * iteration / decay_steps), the quotient rounded down with staircase.
/// keras.optimizers.schedules.InverseTimeDecay.
class InverseTimeDecay final : public LearningRateSchedule {
 public:
  explicit InverseTimeDecay(InverseTimeDecayOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  InverseTimeDecayOptions options_;
};

}  // namespace tutti
