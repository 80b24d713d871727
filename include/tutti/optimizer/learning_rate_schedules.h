// Learning rates over time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

// Learning rates that depend on the number of updates.

/// A pure function of the iteration (updates so far). Immutable; any thread.
/// keras.optimizers.schedules.LearningRateSchedule.
class LearningRateSchedule {
 public:
  virtual ~LearningRateSchedule() = default;
  virtual double operator()(std::int64_t iteration) const = 0;
  /// What Model::save() writes: the call that makes it, ["CosineDecay", {"decay_steps": 100, ...}].
  /// Here: throws kUnimplemented.
  virtual Json describe() const;
};

/// The schedule that these options are for: CosineDecay, LinearWarmUp, ...
template <class Options>
class ScheduleWith final : public LearningRateSchedule {
 public:
  /// Throws kInvalidArgument for numbers out of range.
  explicit ScheduleWith(Options options);
  double operator()(std::int64_t iteration) const override;
  Json describe() const override;

 private:
  Options options_;
};

struct ExponentialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double decay_rate = 0.9;
  bool staircase = false;
};

/// initial * decay_rate ^ (iteration / decay_steps), the exponent rounded down with staircase.
using ExponentialDecay = ScheduleWith<ExponentialDecayOptions>;

/// values[0] while iteration <= boundaries[0], values[1] while iteration <= boundaries[1], ...; one
/// value more than boundaries.
class PiecewiseConstantDecay final : public LearningRateSchedule {
 public:
  PiecewiseConstantDecay(std::vector<std::int64_t> boundaries, std::vector<double> values);
  double operator()(std::int64_t iteration) const override;
  Json describe() const override;

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

  /// A number, or what the schedule's describe() gives. Reading throws kNotFound for a schedule
  /// that is not tutti's.
  Json to_json() const;
  static LearningRate from_json(const Json& json);

  double constant = 0.0;
  std::shared_ptr<const LearningRateSchedule> schedule = nullptr;
};

// Learning rates that fall as a power of what is left, and as the inverse of time.

struct PolynomialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double end_learning_rate = 0.0001;
  double power = 1.0;  // 1: a line
  bool cycle = false;  // whether the rate rises again at each multiple of decay_steps
};

/// (initial - end) * (1 - min(iteration, n) / n)^power + end with n = decay_steps; with cycle n is
/// the next multiple of decay_steps instead. keras.optimizers.schedules.PolynomialDecay.
using PolynomialDecay = ScheduleWith<PolynomialDecayOptions>;

struct InverseTimeDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double decay_rate = 0.5;
  bool staircase = false;
};

/// initial / (1 + decay_rate * iteration / decay_steps), the quotient rounded down with staircase.
/// keras.optimizers.schedules.InverseTimeDecay.
using InverseTimeDecay = ScheduleWith<InverseTimeDecayOptions>;

// Cosine learning rates, with warm-up and with restarts.

struct CosineDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double alpha = 0.0;  // the last rate as a share of the first
  /// Where the warm-up ends; none: no warm-up.
  std::optional<double> warmup_target = std::nullopt;
  std::int64_t warmup_steps = 0;
};

/// first * ((1 - alpha) * (1 + cos(pi * iteration / decay_steps)) / 2 + alpha), then first * alpha.
/// With warmup_target: a line from initial_learning_rate to it in warmup_steps, then the same from
/// there. keras.optimizers.schedules.CosineDecay.
using CosineDecay = ScheduleWith<CosineDecayOptions>;

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
using CosineDecayRestarts = ScheduleWith<CosineDecayRestartsOptions>;

// Learning rates that begin low: a linear warm-up for any schedule, and warm-up, stable, decay.

struct LinearWarmUpOptions {
  /// What follows; its iteration 0 is the one after the warm-up.
  LearningRate then = 0.1;
  double initial_learning_rate = 0.0;
  std::int64_t warm_up_steps = 0;
};

/// A line from initial_learning_rate to then(0) in warm_up_steps, then then(iteration -
/// warm_up_steps): against the unstable start of large batches (Goyal et al., "Accurate, large
/// minibatch SGD", 2017).
using LinearWarmUp = ScheduleWith<LinearWarmUpOptions>;

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
using WarmUpStableDecay = ScheduleWith<WarmUpStableDecayOptions>;

// Learning-rate schedules by name: for configuration files and command lines.

/// The schedule called `name` (learning_rate_schedule_names()) with its options by their names;
/// those that are left out have their defaults, flags are 0 or 1:
/// `make_learning_rate("cosine_decay",
/// {{"initial_learning_rate", 0.1}, {"decay_steps", 1000}})`. Throws kInvalidArgument listing the
/// names, or the options that `name` has.
LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options);

/// In alphabetical order.
std::vector<std::string> learning_rate_schedule_names();

}  // namespace tutti
