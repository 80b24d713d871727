// Learning rates that depend on the number of updates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti {

/// A pure function of the iteration (updates so far). Immutable; any thread.
/// keras.optimizers.schedules.LearningRateSchedule.
class LearningRateSchedule {
 public:
  virtual ~LearningRateSchedule() = default;
  virtual double operator()(std::int64_t iteration) const = 0;
};

struct ExponentialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double decay_rate = 0.9;
  bool staircase = false;
};

/// initial * decay_rate ^ (iteration / decay_steps), the exponent rounded down with staircase.
class ExponentialDecay final : public LearningRateSchedule {
 public:
  explicit ExponentialDecay(ExponentialDecayOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  ExponentialDecayOptions options_;
};

/// values[0] while iteration <= boundaries[0], values[1] while iteration <= boundaries[1], ...; one
/// value more than boundaries.
class PiecewiseConstantDecay final : public LearningRateSchedule {
 public:
  PiecewiseConstantDecay(std::vector<std::int64_t> boundaries, std::vector<double> values);
  double operator()(std::int64_t iteration) const override;

 private:
  std::vector<std::int64_t> boundaries_;
  std::vector<double> values_;
};

/// A constant or a schedule. A value; copies share the schedule.
struct LearningRate {
  LearningRate(double value) : constant(value) {}
  LearningRate(std::shared_ptr<const LearningRateSchedule> function)
      : schedule(std::move(function)) {}
  template <class Schedule>
  requires std::is_base_of_v<LearningRateSchedule, Schedule> LearningRate(const Schedule& function)
      : schedule(std::make_shared<const Schedule>(function)) {}

  /// The rate of update number `iteration`.
  double at(std::int64_t iteration) const { return schedule ? (*schedule)(iteration) : constant; }

  double constant = 0.0;
  std::shared_ptr<const LearningRateSchedule> schedule = nullptr;
};

}  // namespace tutti
