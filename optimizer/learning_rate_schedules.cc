// Learning rates over time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/learning_rate_schedules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "core/call_table.h"
#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/fields.h"

namespace tutti {
namespace {

double share_of(std::int64_t iteration, std::int64_t steps) {
  return static_cast<double>(iteration) / static_cast<double>(steps);
}

/// From 1 to 0 while `share` goes from 0 to 1.
double half_cosine(double share) { return 0.5 * (1.0 + std::cos(std::numbers::pi * share)); }

}  // namespace

// Learning rates that depend on the number of updates.

ExponentialDecay::ExponentialDecay(ExponentialDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || !(options_.decay_rate > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "ExponentialDecay: expected decay_steps of 1 or more and a positive decay_rate, got ",
         options_.decay_steps, " and ", options_.decay_rate);
  }
}

double ExponentialDecay::operator()(std::int64_t iteration) const {
  double exponent = share_of(iteration, options_.decay_steps);
  if (options_.staircase) exponent = std::floor(exponent);
  return options_.initial_learning_rate * std::pow(options_.decay_rate, exponent);
}

PiecewiseConstantDecay::PiecewiseConstantDecay(std::vector<std::int64_t> boundaries,
                                               std::vector<double> values)
    : boundaries_(std::move(boundaries)), values_(std::move(values)) {
  const bool ascending =
      std::ranges::adjacent_find(boundaries_, std::greater_equal<>{}) == boundaries_.end();
  if (values_.size() != boundaries_.size() + 1 || !ascending) {
    fail(
        ErrorCode::kInvalidArgument,
        "PiecewiseConstantDecay: expected ascending boundaries and one value more than boundaries, "
        "got boundaries [",
        join(boundaries_), "] and ", values_.size(), " values");
  }
}

double PiecewiseConstantDecay::operator()(std::int64_t iteration) const {
  const auto place = std::ranges::lower_bound(boundaries_, iteration);
  return values_[static_cast<std::size_t>(place - boundaries_.begin())];
}

// Learning rates that fall as a power of what is left, and as the inverse of time.

PolynomialDecay::PolynomialDecay(PolynomialDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1) {
    fail(ErrorCode::kInvalidArgument, "PolynomialDecay: expected decay_steps of 1 or more, got ",
         options_.decay_steps);
  }
}

double PolynomialDecay::operator()(std::int64_t iteration) const {
  double step = static_cast<double>(iteration);
  double steps = static_cast<double>(options_.decay_steps);
  if (options_.cycle) {
    steps *= std::max(std::ceil(step / steps), 1.0);
  } else {
    step = std::min(step, steps);
  }
  const double first = options_.initial_learning_rate, last = options_.end_learning_rate;
  return (first - last) * std::pow(1.0 - step / steps, options_.power) + last;
}

InverseTimeDecay::InverseTimeDecay(InverseTimeDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || !(options_.decay_rate >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "InverseTimeDecay: expected decay_steps of 1 or more and a decay_rate of 0 or more, got ",
         options_.decay_steps, " and ", options_.decay_rate);
  }
}

double InverseTimeDecay::operator()(std::int64_t iteration) const {
  double periods = share_of(iteration, options_.decay_steps);
  if (options_.staircase) periods = std::floor(periods);
  return options_.initial_learning_rate / (1.0 + options_.decay_rate * periods);
}

// Cosine learning rates, with warm-up and with restarts.

CosineDecay::CosineDecay(CosineDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || options_.warmup_steps < 0) {
    fail(ErrorCode::kInvalidArgument,
         "CosineDecay: expected decay_steps of 1 or more and warmup_steps of 0 or more, got ",
         options_.decay_steps, " and ", options_.warmup_steps);
  }
  if (!options_.warmup_target && options_.warmup_steps > 0) {
    fail(ErrorCode::kInvalidArgument, "CosineDecay: ", options_.warmup_steps,
         " warmup_steps without a target; try .warmup_target");
  }
}

double CosineDecay::operator()(std::int64_t iteration) const {
  const std::int64_t warmup_steps = options_.warmup_target ? options_.warmup_steps : 0;
  const double first = options_.initial_learning_rate;
  const double top = options_.warmup_target.value_or(first);
  if (iteration < warmup_steps) {
    return (top - first) * share_of(iteration, warmup_steps) + first;
  }
  const std::int64_t step = std::min(iteration - warmup_steps, options_.decay_steps);
  const double share = share_of(step, options_.decay_steps);
  return top * ((1.0 - options_.alpha) * half_cosine(share) + options_.alpha);
}

CosineDecayRestarts::CosineDecayRestarts(CosineDecayRestartsOptions options) : options_(options) {
  if (options_.first_decay_steps < 1 || !(options_.t_mul >= 1.0) || !(options_.m_mul > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "CosineDecayRestarts: expected first_decay_steps of 1 or more, t_mul of 1 or more and a "
         "positive m_mul, got ",
         options_.first_decay_steps, ", ", options_.t_mul, " and ", options_.m_mul);
  }
}

double CosineDecayRestarts::operator()(std::int64_t iteration) const {
  // Walked, not computed with logarithms, which miss the first step of a period by rounding.
  double length = static_cast<double>(options_.first_decay_steps);
  double rest = static_cast<double>(iteration), factor = 1.0;
  if (options_.t_mul == 1.0) {
    const double period = std::floor(rest / length);
    factor = std::pow(options_.m_mul, period);
    rest -= period * length;
  }
  while (rest >= length) {
    rest -= length;
    length *= options_.t_mul;
    factor *= options_.m_mul;
  }
  return options_.initial_learning_rate *
         ((1.0 - options_.alpha) * factor * half_cosine(rest / length) + options_.alpha);
}

// Learning rates that begin low: a linear warm-up for any schedule, and warm-up, stable, decay.

namespace {

/// From 1 to 0 while x goes from 0 to 1.
double fall(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - x;
    case DecayShape::kCosine:
      return half_cosine(x);
    case DecayShape::kOneMinusSquareRoot:
      return 1.0 - std::sqrt(x);
  }
  fail(ErrorCode::kInvalidArgument, "DecayShape: no such value: ", static_cast<int>(shape));
}

}  // namespace

LinearWarmUp::LinearWarmUp(LinearWarmUpOptions options) : options_(std::move(options)) {
  if (options_.warm_up_steps < 0) {
    fail(ErrorCode::kInvalidArgument, "LinearWarmUp: expected 0 warm_up_steps or more, got ",
         options_.warm_up_steps);
  }
}

double LinearWarmUp::operator()(std::int64_t iteration) const {
  const std::int64_t steps = options_.warm_up_steps;
  if (iteration >= steps) return options_.then.at(iteration - steps);
  const double first = options_.initial_learning_rate;
  return first + (options_.then.at(0) - first) * share_of(iteration, steps);
}

WarmUpStableDecay::WarmUpStableDecay(WarmUpStableDecayOptions options) : options_(options) {
  if (std::min({options.warm_up_steps, options.stable_steps, options.decay_steps}) < 0) {
    fail(ErrorCode::kInvalidArgument,
         "WarmUpStableDecay: expected warm_up_steps, stable_steps and decay_steps of 0 or more, "
         "got ",
         options.warm_up_steps, ", ", options.stable_steps, " and ", options.decay_steps);
  }
}

double WarmUpStableDecay::operator()(std::int64_t iteration) const {
  const double first = options_.initial_learning_rate, top = options_.learning_rate;
  if (iteration < options_.warm_up_steps) {
    return first + (top - first) * share_of(iteration, options_.warm_up_steps);
  }
  const std::int64_t step = iteration - options_.warm_up_steps - options_.stable_steps;
  if (step < 0) return top;
  const double last = options_.final_learning_rate;
  if (step >= options_.decay_steps) return last;
  return last + (top - last) * fall(options_.shape, share_of(step, options_.decay_steps));
}

namespace {

/// The options that were given; remembers which ones there are.
class Given {
 public:
  Given(std::string who, const std::map<std::string, double>& values)
      : who_(std::move(who)), values_(values) {}

  void take(const std::string& option, double& into) {
    known_.push_back(option);
    if (const double* value = find(option)) into = *value;
  }
  void take(const std::string& option, std::optional<double>& into) {
    known_.push_back(option);
    if (const double* value = find(option)) into = *value;
  }
  void take(const std::string& option, std::int64_t& into) {
    known_.push_back(option);
    const double* value = find(option);
    if (!value) return;
    if (*value != std::floor(*value) || std::abs(*value) > 1e15) {
      fail(ErrorCode::kInvalidArgument, who_, ": ", option, ": expected a whole number, got ",
           *value);
    }
    into = static_cast<std::int64_t>(*value);
  }
  void take(const std::string& option, bool& into) {
    std::int64_t flag = into;
    take(option, flag);
    into = flag != 0;
  }
  void require_known() const {
    for (const auto& [option, value] : values_) {
      if (std::ranges::find(known_, option) != known_.end()) continue;
      fail(ErrorCode::kInvalidArgument, who_, " has no option '", option, "'; expected one of ",
           join(known_));
    }
  }

 private:
  const double* find(const std::string& option) const {
    const auto found = values_.find(option);
    return found == values_.end() ? nullptr : &found->second;
  }

  std::string who_;
  const std::map<std::string, double>& values_;
  std::vector<std::string> known_;
};

/// All options that are numbers or flags.
template <class Options>
void take_all(Given& given, Options& options) {
  internal::for_each_field(options, [&]<class Field>(std::string_view name, Field& field) {
    if constexpr (std::is_same_v<Field, LearningRate>) {
      given.take("learning_rate", field.constant);
    } else if constexpr (!std::is_enum_v<Field>) {
      given.take(std::string(name), field);
    }
  });
}

template <class Schedule, class Options>
LearningRate make(const std::string& name, const std::map<std::string, double>& values) {
  Given given("learning-rate schedule '" + name + "'", values);
  Options options;
  take_all(given, options);
  given.require_known();
  return Schedule(options);
}

LearningRate make_constant(const std::string& name, const std::map<std::string, double>& values) {
  Given given("learning-rate schedule '" + name + "'", values);
  double rate = 0.01;
  given.take("learning_rate", rate);
  given.require_known();
  return rate;
}

struct NamedSchedule {
  const char* name;
  LearningRate (*make)(const std::string&, const std::map<std::string, double>&);
};

constexpr NamedSchedule kNamedSchedules[] = {
    {"constant", make_constant},
    {"cosine_decay", make<CosineDecay, CosineDecayOptions>},
    {"cosine_decay_restarts", make<CosineDecayRestarts, CosineDecayRestartsOptions>},
    {"exponential_decay", make<ExponentialDecay, ExponentialDecayOptions>},
    {"inverse_time_decay", make<InverseTimeDecay, InverseTimeDecayOptions>},
    {"linear_warm_up", make<LinearWarmUp, LinearWarmUpOptions>},
    {"polynomial_decay", make<PolynomialDecay, PolynomialDecayOptions>},
    {"warm_up_stable_decay", make<WarmUpStableDecay, WarmUpStableDecayOptions>}};

}  // namespace

// Schedules as the calls that make them.

Json LearningRateSchedule::describe() const {
  fail(ErrorCode::kUnimplemented, "the learning-rate schedule ",
       internal::plain_type_name(typeid(*this)), " is none of tutti's, so it cannot be saved");
}
Json PiecewiseConstantDecay::describe() const {
  return internal::call_of("PiecewiseConstantDecay", boundaries_, values_);
}
Json ExponentialDecay::describe() const { return internal::call_of("ExponentialDecay", options_); }
Json PolynomialDecay::describe() const { return internal::call_of("PolynomialDecay", options_); }
Json InverseTimeDecay::describe() const { return internal::call_of("InverseTimeDecay", options_); }
Json CosineDecay::describe() const { return internal::call_of("CosineDecay", options_); }
Json CosineDecayRestarts::describe() const {
  return internal::call_of("CosineDecayRestarts", options_);
}
Json LinearWarmUp::describe() const { return internal::call_of("LinearWarmUp", options_); }
Json WarmUpStableDecay::describe() const {
  return internal::call_of("WarmUpStableDecay", options_);
}

namespace {

template <class Schedule, class... Arguments>
std::pair<std::string, internal::CallReader<LearningRate>> schedule_entry() {
  return {internal::plain_type_name(typeid(Schedule)),
          internal::reads_call<Arguments...>([](Arguments... arguments) -> LearningRate {
            return Schedule(std::move(arguments)...);
          })};
}

const internal::CallTable<LearningRate>& schedule_table() {
  static const internal::CallTable<LearningRate> table(
      "learning-rate schedule", "try compiling the loaded model with it",
      {schedule_entry<ExponentialDecay, ExponentialDecayOptions>(),
       schedule_entry<PiecewiseConstantDecay, std::vector<std::int64_t>, std::vector<double>>(),
       schedule_entry<PolynomialDecay, PolynomialDecayOptions>(),
       schedule_entry<InverseTimeDecay, InverseTimeDecayOptions>(),
       schedule_entry<CosineDecay, CosineDecayOptions>(),
       schedule_entry<CosineDecayRestarts, CosineDecayRestartsOptions>(),
       schedule_entry<LinearWarmUp, LinearWarmUpOptions>(),
       schedule_entry<WarmUpStableDecay, WarmUpStableDecayOptions>()});
  return table;
}

}  // namespace

Json LearningRate::to_json() const { return schedule ? schedule->describe() : Json(constant); }

LearningRate LearningRate::from_json(const Json& json) {
  return json.is_array() ? schedule_table().make(json) : LearningRate(json.as_double());
}

LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options) {
  const auto found = std::ranges::find(kNamedSchedules, name, &NamedSchedule::name);
  if (found == std::end(kNamedSchedules)) {
    fail(ErrorCode::kInvalidArgument, "learning-rate schedule '", name,
         "' is unknown; expected one of ", internal::choices(learning_rate_schedule_names(), name),
         "; or pass an object of a class derived from LearningRateSchedule");
  }
  return found->make(name, options);
}

std::vector<std::string> learning_rate_schedule_names() {
  return internal::names_of(kNamedSchedules, &NamedSchedule::name);
}

}  // namespace tutti
