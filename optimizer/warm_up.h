// Learning rates that begin low: a linear warm-up for any schedule, and warm-up, stable, decay.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

struct LinearWarmUpOptions {
  /// What follows; its iteration 0 is the one after the warm-up.
  LearningRate then = 0.1;
  double initial_learning_rate = 0.0;
  std::int64_t warm_up_steps = 0;
};

/// A line from initial_learning_rate to then(0) in warm_up_steps, then then(iteration -
/// warm_up_steps): against the unstable start of large batches (Goyal et al., "Accurate, large
/// minibatch SGD", 2017).
class LinearWarmUp final : public LearningRateSchedule {
 public:
  /// Throws kInvalidArgument for a negative number of steps.
  explicit LinearWarmUp(LinearWarmUpOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  LinearWarmUpOptions options_;
};

/// How the last phase of a WarmUpStableDecay falls; x goes from 0 to 1: 1 - x; half a cosine; 1 -
/// sqrt(x), which Haegele et al. ("Scaling laws and compute-optimal training beyond fixed training
/// durations", 2024) found best.
enum class DecayShape { kLinear, kCosine, kOneMinusSquareRoot };

struct WarmUpStableDecayOptions {
  double learning_rate = 0.1;  // of the stable phase
  std::int64_t warm_up_steps = 0;
  std::int64_t stable_steps = 0;
  std::int64_t decay_steps = 1;
  double initial_learning_rate = 0.0;
  double final_learning_rate = 0.0;
  DecayShape shape = DecayShape::kLinear;
};

/// A line up, a constant, a fall to final_learning_rate, which stays (Hu et al., "MiniCPM", 2024):
/// a run can go on from the stable phase without knowing its length.
class WarmUpStableDecay final : public LearningRateSchedule {
 public:
  /// Throws kInvalidArgument for a negative number of steps.
  explicit WarmUpStableDecay(WarmUpStableDecayOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  WarmUpStableDecayOptions options_;
};

}  // namespace tutti
