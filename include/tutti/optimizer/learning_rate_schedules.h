// Learning-rate schedules.
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

/// Learning rate as a pure function of the iteration (number of updates so far). Immutable and
/// thread-safe. Corresponds to keras.optimizers.schedules.LearningRateSchedule.
class LearningRateSchedule {
 public:
  virtual ~LearningRateSchedule() = default;
  virtual double operator()(std::int64_t iteration) const = 0;
  /// Returns the constructor call that Model::save() writes, e.g. ["CosineDecay", {"decay_steps":
  /// 100, ...}]. The default throws kUnimplemented.
  virtual Json describe() const;
};

/// Built-in schedule with its options: CosineDecay, LinearWarmUp, ...
template <class Options>
class ScheduleWith final : public LearningRateSchedule {
 public:
  /// Throws kInvalidArgument if an option is out of range.
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

/// Rate: initial * decay_rate ^ (iteration / decay_steps); the exponent is rounded down if
/// staircase is set.
using ExponentialDecay = ScheduleWith<ExponentialDecayOptions>;

/// Piecewise constant rate: values[i] for the first i with iteration <= boundaries[i], and the last
/// value after all boundaries. values.size() must be boundaries.size() + 1.
class PiecewiseConstantDecay final : public LearningRateSchedule {
 public:
  PiecewiseConstantDecay(std::vector<std::int64_t> boundaries, std::vector<double> values);
  double operator()(std::int64_t iteration) const override;
  Json describe() const override;

 private:
  std::vector<std::int64_t> boundaries_;
  std::vector<double> values_;
};

/// A constant or a schedule. A value type; copies share the schedule.
struct LearningRate {
  LearningRate(double value) : constant(value) {}
  LearningRate(std::shared_ptr<const LearningRateSchedule> function)
      : schedule(std::move(function)) {}
  template <class Schedule>
  requires std::is_base_of_v<LearningRateSchedule, Schedule> LearningRate(const Schedule& function)
      : schedule(std::make_shared<const Schedule>(function)) {}

  /// Returns the rate for update number `iteration`.
  double at(std::int64_t iteration) const { return schedule ? (*schedule)(iteration) : constant; }

  /// Returns the constant, or the result of the schedule's describe(). from_json() throws kNotFound
  /// if the schedule is not one of tutti's.
  Json to_json() const;
  static LearningRate from_json(const Json& json);

  double constant = 0.0;
  std::shared_ptr<const LearningRateSchedule> schedule = nullptr;
};

// Polynomial and inverse-time decay.

struct PolynomialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double end_learning_rate = 0.0001;
  double power = 1.0;  // 1: linear
  bool cycle = false;  // if true, the rate rises again at each multiple of decay_steps
};

/// Rate: (initial - end) * (1 - min(iteration, n) / n)^power + end with n = decay_steps; if cycle
/// is set, n is the smallest positive multiple of decay_steps that is >= iteration. Same as
/// keras.optimizers.schedules.PolynomialDecay.
using PolynomialDecay = ScheduleWith<PolynomialDecayOptions>;

struct InverseTimeDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double decay_rate = 0.5;
  bool staircase = false;
};

/// Rate: initial / (1 + decay_rate * iteration / decay_steps); iteration / decay_steps is rounded
/// down if staircase is set. Corresponds to keras.optimizers.schedules.InverseTimeDecay.
using InverseTimeDecay = ScheduleWith<InverseTimeDecayOptions>;

// Cosine decay, with warm-up and with restarts.

struct CosineDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1;
  double alpha = 0.0;  // final rate as a fraction of the peak rate
  /// Rate at the end of the warm-up; nullopt disables the warm-up.
  std::optional<double> warmup_target = std::nullopt;
  std::int64_t warmup_steps = 0;
};

/// Rate: peak * ((1 - alpha) * (1 + cos(pi * iteration / decay_steps)) / 2 + alpha); after
/// decay_steps, peak * alpha. Without warm-up, peak is initial_learning_rate. With warmup_target,
/// the rate first increases linearly from initial_learning_rate to warmup_target over warmup_steps;
/// peak is warmup_target, and the formula's iteration counts from the end of the warm-up.
/// Corresponds to keras.optimizers.schedules.CosineDecay.
using CosineDecay = ScheduleWith<CosineDecayOptions>;

struct CosineDecayRestartsOptions {
  double initial_learning_rate = 0.1;
  std::int64_t first_decay_steps = 1;
  double t_mul = 2.0;  // factor between the lengths of consecutive periods
  double m_mul = 1.0;  // factor between the first rates of consecutive periods
  double alpha = 0.0;
};

/// Cosine decay with restarts (Loshchilov and Hutter, "SGDR", ICLR 2017) in Keras's form. Rate:
/// initial * ((1 - alpha) * m_mul^period * (1 + cos(pi * fraction of the period)) / 2 + alpha).
/// Same as keras.optimizers.schedules.CosineDecayRestarts.
using CosineDecayRestarts = ScheduleWith<CosineDecayRestartsOptions>;

// Linear warm-up for any schedule, and warm-up-stable-decay.

struct LinearWarmUpOptions {
  /// Schedule after the warm-up; its iteration 0 is the first iteration after the warm-up.
  LearningRate then = 0.1;
  double initial_learning_rate = 0.0;
  std::int64_t warm_up_steps = 0;
};

/// Linear increase from initial_learning_rate to then(0) over warm_up_steps, followed by
/// then(iteration - warm_up_steps). Prevents instability at the start of training with large
/// batches (Goyal et al., "Accurate, large minibatch SGD", 2017).
using LinearWarmUp = ScheduleWith<LinearWarmUpOptions>;

/// Shape of the last phase of WarmUpStableDecay, for x from 0 to 1: 1 - x; half a cosine; 1 -
/// sqrt(x), which Haegele et al. found best ("Scaling laws and compute-optimal training beyond
/// fixed training durations", 2024).
enum class DecayShape { kLinear, kCosine, kOneMinusSquareRoot };

struct WarmUpStableDecayOptions {
  double learning_rate = 0.1;  // rate of the stable phase
  std::int64_t warm_up_steps = 0;
  std::int64_t stable_steps = 0;
  std::int64_t decay_steps = 1;
  double initial_learning_rate = 0.0;
  double final_learning_rate = 0.0;
  DecayShape shape = DecayShape::kLinear;
};

/// Linear warm-up, constant phase, then decay to final_learning_rate (Hu et al., "MiniCPM", 2024).
/// The length of training need not be known in advance: a run can be extended from its stable
/// phase.
using WarmUpStableDecay = ScheduleWith<WarmUpStableDecayOptions>;

// Creation of schedules by name, for configuration files and command lines.

/// Creates the schedule called `name` (see learning_rate_schedule_names()) with the given options;
/// omitted options take their defaults, and boolean options are 0 or 1:
/// `make_learning_rate("cosine_decay", {{"initial_learning_rate", 0.1}, {"decay_steps", 1000}})`.
/// Throws kInvalidArgument, listing the known names, for an unknown name or option.
LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options);

/// Returns the names of all schedules, in alphabetical order.
std::vector<std::string> learning_rate_schedule_names();

}  // namespace tutti
