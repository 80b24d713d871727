// Learning-rate schedules.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/learning_rate_schedules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>

#include "core/call_table.h"
#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/fields.h"

namespace tutti {
namespace {

double share_of(std::int64_t iteration, std::int64_t steps) {
  return static_cast<double>(iteration) / static_cast<double>(steps);
}

/// Returns a value that falls from 1 to 0 as `share` increases from 0 to 1.
double half_cosine(double share) { return 0.5 * (1.0 + std::cos(std::numbers::pi * share)); }

void check(const ExponentialDecayOptions& options) {
  internal::require(options.decay_steps >= 1 && options.decay_rate > 0.0,
                    "ExponentialDecay: expected decay_steps >= 1 and a positive decay_rate, got ",
                    options.decay_steps, " and ", options.decay_rate);
}

double rate_at(const ExponentialDecayOptions& options, std::int64_t iteration) {
  double exponent = share_of(iteration, options.decay_steps);
  if (options.staircase) exponent = std::floor(exponent);
  return options.initial_learning_rate * std::pow(options.decay_rate, exponent);
}

void check(const PolynomialDecayOptions& options) {
  internal::require(options.decay_steps >= 1, "PolynomialDecay: expected decay_steps >= 1, got ",
                    options.decay_steps);
}

double rate_at(const PolynomialDecayOptions& options, std::int64_t iteration) {
  double step = static_cast<double>(iteration);
  double steps = static_cast<double>(options.decay_steps);
  if (options.cycle) {
    steps *= std::max(std::ceil(step / steps), 1.0);
  } else {
    step = std::min(step, steps);
  }
  const double first = options.initial_learning_rate, last = options.end_learning_rate;
  return (first - last) * std::pow(1.0 - step / steps, options.power) + last;
}

void check(const InverseTimeDecayOptions& options) {
  internal::require(options.decay_steps >= 1 && options.decay_rate >= 0.0,
                    "InverseTimeDecay: expected decay_steps >= 1 and a decay_rate >= 0, got ",
                    options.decay_steps, " and ", options.decay_rate);
}

double rate_at(const InverseTimeDecayOptions& options, std::int64_t iteration) {
  double periods = share_of(iteration, options.decay_steps);
  if (options.staircase) periods = std::floor(periods);
  return options.initial_learning_rate / (1.0 + options.decay_rate * periods);
}

void check(const CosineDecayOptions& options) {
  internal::require(options.decay_steps >= 1 && options.warmup_steps >= 0,
                    "CosineDecay: expected decay_steps >= 1 and warmup_steps >= 0, got ",
                    options.decay_steps, " and ", options.warmup_steps);
  internal::require(options.warmup_target || options.warmup_steps <= 0,
                    "CosineDecay: expected a warmup_target with ", options.warmup_steps,
                    " warmup_steps, got none; set .warmup_target");
}

double rate_at(const CosineDecayOptions& options, std::int64_t iteration) {
  const std::int64_t warmup_steps = options.warmup_target ? options.warmup_steps : 0;
  const double first = options.initial_learning_rate;
  const double top = options.warmup_target.value_or(first);
  if (iteration < warmup_steps) {
    return (top - first) * share_of(iteration, warmup_steps) + first;
  }
  const std::int64_t step = std::min(iteration - warmup_steps, options.decay_steps);
  const double share = share_of(step, options.decay_steps);
  return top * ((1.0 - options.alpha) * half_cosine(share) + options.alpha);
}

void check(const CosineDecayRestartsOptions& options) {
  internal::require(options.first_decay_steps >= 1 && options.t_mul >= 1.0 && options.m_mul > 0.0,
                    "CosineDecayRestarts: expected first_decay_steps >= 1, t_mul >= 1 and a "
                    "positive m_mul, got ",
                    options.first_decay_steps, ", ", options.t_mul, " and ", options.m_mul);
}

double rate_at(const CosineDecayRestartsOptions& options, std::int64_t iteration) {
  // Uses a loop, because rounding errors in logarithms could misplace the first step of a period.
  double length = static_cast<double>(options.first_decay_steps);
  double rest = static_cast<double>(iteration), factor = 1.0;
  if (options.t_mul == 1.0) {
    const double period = std::floor(rest / length);
    factor = std::pow(options.m_mul, period);
    rest -= period * length;
  }
  while (rest >= length) {
    rest -= length;
    length *= options.t_mul;
    factor *= options.m_mul;
  }
  return options.initial_learning_rate *
         ((1.0 - options.alpha) * factor * half_cosine(rest / length) + options.alpha);
}

/// Returns a value that falls from 1 to 0 as x increases from 0 to 1.
double fall(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - x;
    case DecayShape::kCosine:
      return half_cosine(x);
    case DecayShape::kOneMinusSquareRoot:
      return 1.0 - std::sqrt(x);
  }
  fail(ErrorCode::kInvalidArgument,
       "DecayShape: expected kLinear, kCosine or kOneMinusSquareRoot, got ",
       static_cast<int>(shape));
}

void check(const LinearWarmUpOptions& options) {
  internal::require(options.warm_up_steps >= 0, "LinearWarmUp: expected warm_up_steps >= 0, got ",
                    options.warm_up_steps);
}

double rate_at(const LinearWarmUpOptions& options, std::int64_t iteration) {
  const std::int64_t steps = options.warm_up_steps;
  if (iteration >= steps) return options.then.at(iteration - steps);
  const double first = options.initial_learning_rate;
  return first + (options.then.at(0) - first) * share_of(iteration, steps);
}

void check(const WarmUpStableDecayOptions& options) {
  internal::require(
      std::min({options.warm_up_steps, options.stable_steps, options.decay_steps}) >= 0,
      "WarmUpStableDecay: expected warm_up_steps, stable_steps and decay_steps >= 0, "
      "got ",
      options.warm_up_steps, ", ", options.stable_steps, " and ", options.decay_steps);
}

double rate_at(const WarmUpStableDecayOptions& options, std::int64_t iteration) {
  const double first = options.initial_learning_rate, top = options.learning_rate;
  if (iteration < options.warm_up_steps) {
    return first + (top - first) * share_of(iteration, options.warm_up_steps);
  }
  const std::int64_t step = iteration - options.warm_up_steps - options.stable_steps;
  if (step < 0) return top;
  const double last = options.final_learning_rate;
  if (step >= options.decay_steps) return last;
  return last + (top - last) * fall(options.shape, share_of(step, options.decay_steps));
}

// JSON form of schedules: the calls that recreate them.

/// Returns the name of the schedule's type, such as "CosineDecay".
template <class Options>
std::string schedule_type() {
  std::string name = internal::plain_type_name(typeid(Options));
  return name.erase(name.rfind("Options"));
}

/// Returns options whose numbers and flags are set by name from `numbers`.
template <class Options>
Options options_of(const std::string& name, const std::map<std::string, double>& numbers) {
  const std::string who = "learning-rate schedule '" + name + "'";
  Options options;
  std::vector<std::string> known;
  const auto take = [&]<class Field>(std::string_view option, Field& field) {
    known.emplace_back(option);
    const auto found = numbers.find(known.back());
    if (found == numbers.end()) return;
    const double number = found->second;
    if constexpr (std::is_integral_v<Field>) {
      internal::require(number == std::floor(number) && std::abs(number) <= 1e15, who, ": ", option,
                        ": expected a whole number, got ", number);
      field = static_cast<Field>(static_cast<std::int64_t>(number));
    } else {
      field = number;
    }
  };
  internal::for_each_field(options, [&]<class Field>(std::string_view option, Field& field) {
    if constexpr (std::is_same_v<Field, LearningRate>) {
      take("learning_rate", field.constant);
    } else if constexpr (!std::is_enum_v<Field>) {
      take(option, field);
    }
  });
  for (const auto& [option, number] : numbers) {
    if (std::ranges::find(known, option) != known.end()) continue;
    fail(ErrorCode::kInvalidArgument, who, " has no option '", option, "'; expected one of ",
         join(known));
  }
  return options;
}

struct ConstantOptions {
  LearningRate rate = 0.01;
};

using Reader = std::pair<std::string, internal::CallReader<LearningRate>>;

struct NamedSchedule {
  std::string name;
  LearningRate (*make)(const std::string& name, const std::map<std::string, double>& numbers);
  std::optional<Reader> reader;  // nullopt if saved as a number
};

template <class Options>
NamedSchedule named() {
  const std::string type = schedule_type<Options>();
  return {internal::snake_case(type),
          [](const std::string& name, const std::map<std::string, double>& numbers) {
            return LearningRate(ScheduleWith(options_of<Options>(name, numbers)));
          },
          Reader{type, internal::reads_call<Options>([](Options options) {
                   return LearningRate(ScheduleWith(std::move(options)));
                 })}};
}

/// Returns the named schedules, in alphabetical order.
const std::vector<NamedSchedule>& named_schedules() {
  static const std::vector<NamedSchedule> schedules = {
      {"constant",
       [](const std::string& name, const std::map<std::string, double>& numbers) {
         return options_of<ConstantOptions>(name, numbers).rate;
       },
       std::nullopt},
      named<CosineDecayOptions>(),
      named<CosineDecayRestartsOptions>(),
      named<ExponentialDecayOptions>(),
      named<InverseTimeDecayOptions>(),
      named<LinearWarmUpOptions>(),
      named<PolynomialDecayOptions>(),
      named<WarmUpStableDecayOptions>()};
  return schedules;
}

}  // namespace

Json LearningRateSchedule::describe() const {
  fail(ErrorCode::kUnimplemented, "the learning-rate schedule ",
       internal::plain_type_name(typeid(*this)), " is not built into tutti, so it cannot be saved");
}

template <class Options>
ScheduleWith<Options>::ScheduleWith(Options options) : options_(std::move(options)) {
  check(options_);
}

template <class Options>
double ScheduleWith<Options>::operator()(std::int64_t iteration) const {
  return rate_at(options_, iteration);
}

template <class Options>
Json ScheduleWith<Options>::describe() const {
  return internal::call_of(schedule_type<Options>(), options_);
}

template class ScheduleWith<CosineDecayOptions>;
template class ScheduleWith<CosineDecayRestartsOptions>;
template class ScheduleWith<ExponentialDecayOptions>;
template class ScheduleWith<InverseTimeDecayOptions>;
template class ScheduleWith<LinearWarmUpOptions>;
template class ScheduleWith<PolynomialDecayOptions>;
template class ScheduleWith<WarmUpStableDecayOptions>;

PiecewiseConstantDecay::PiecewiseConstantDecay(std::vector<std::int64_t> boundaries,
                                               std::vector<double> values)
    : boundaries_(std::move(boundaries)), values_(std::move(values)) {
  const bool ascending =
      std::ranges::adjacent_find(boundaries_, std::greater_equal<>{}) == boundaries_.end();
  internal::require(
      values_.size() == boundaries_.size() + 1 && ascending,
      "PiecewiseConstantDecay: expected ascending boundaries and one more value than boundaries, "
      "got boundaries [",
      join(boundaries_), "] and ", values_.size(), " values");
}

double PiecewiseConstantDecay::operator()(std::int64_t iteration) const {
  const auto place = std::ranges::lower_bound(boundaries_, iteration);
  return values_[static_cast<std::size_t>(place - boundaries_.begin())];
}

Json PiecewiseConstantDecay::describe() const {
  return internal::call_of("PiecewiseConstantDecay", boundaries_, values_);
}

Json LearningRate::to_json() const { return schedule ? schedule->describe() : Json(constant); }

LearningRate LearningRate::from_json(const Json& json) {
  using Table = internal::CallTable<LearningRate>;
  static const Table table("learning-rate schedule", "save with .compile_arguments = false", [] {
    std::vector<Table::Entry> readers;
    for (const NamedSchedule& schedule : named_schedules()) {
      if (schedule.reader) readers.push_back(*schedule.reader);
    }
    // Not in named_schedules(), because make_learning_rate() does not accept lists as arguments.
    readers.emplace_back(
        "PiecewiseConstantDecay",
        internal::reads_call<std::vector<std::int64_t>, std::vector<double>>([](auto... arguments) {
          return LearningRate(PiecewiseConstantDecay(std::move(arguments)...));
        }));
    return readers;
  }());
  return json.is_array() ? table.make(json) : LearningRate(json.as_double());
}

LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options) {
  const auto found = std::ranges::find(named_schedules(), name, &NamedSchedule::name);
  if (found == named_schedules().end()) {
    fail(ErrorCode::kInvalidArgument, "learning-rate schedule '", name,
         "' is unknown; expected one of ", internal::choices(learning_rate_schedule_names(), name),
         "; or pass an object of a class derived from LearningRateSchedule");
  }
  return found->make(name, options);
}

std::vector<std::string> learning_rate_schedule_names() {
  return internal::names_of(named_schedules(), &NamedSchedule::name);
}

}  // namespace tutti
