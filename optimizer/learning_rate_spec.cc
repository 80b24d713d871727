// Learning-rate schedules by name: for configuration files and command lines.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/learning_rate_schedules.h"

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"

namespace tutti {
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

void take_all(Given& given, CosineDecayOptions& options) {
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("decay_steps", options.decay_steps);
  given.take("alpha", options.alpha);
  given.take("warmup_target", options.warmup_target);
  given.take("warmup_steps", options.warmup_steps);
}

void take_all(Given& given, CosineDecayRestartsOptions& options) {
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("first_decay_steps", options.first_decay_steps);
  given.take("t_mul", options.t_mul);
  given.take("m_mul", options.m_mul);
  given.take("alpha", options.alpha);
}

/// ExponentialDecayOptions and InverseTimeDecayOptions.
template <class DecayOptions>
requires requires(DecayOptions options) { options.staircase; }
void take_all(Given& given, DecayOptions& options) {
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("decay_steps", options.decay_steps);
  given.take("decay_rate", options.decay_rate);
  given.take("staircase", options.staircase);
}

void take_all(Given& given, PolynomialDecayOptions& options) {
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("decay_steps", options.decay_steps);
  given.take("end_learning_rate", options.end_learning_rate);
  given.take("power", options.power);
  given.take("cycle", options.cycle);
}

void take_all(Given& given, WarmUpStableDecayOptions& options) {
  given.take("learning_rate", options.learning_rate);
  given.take("warm_up_steps", options.warm_up_steps);
  given.take("stable_steps", options.stable_steps);
  given.take("decay_steps", options.decay_steps);
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("final_learning_rate", options.final_learning_rate);
}

void take_all(Given& given, LinearWarmUpOptions& options) {
  given.take("learning_rate", options.then.constant);
  given.take("initial_learning_rate", options.initial_learning_rate);
  given.take("warm_up_steps", options.warm_up_steps);
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

LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options) {
  const auto found = std::ranges::find(kNamedSchedules, name, &NamedSchedule::name);
  if (found == std::end(kNamedSchedules)) {
    fail(ErrorCode::kInvalidArgument, "learning-rate schedule '", name,
         "' is unknown; expected one of ", join(learning_rate_schedule_names()),
         "; or pass an object of a class derived from LearningRateSchedule");
  }
  return found->make(name, options);
}

std::vector<std::string> learning_rate_schedule_names() {
  std::vector<std::string> names;
  for (const NamedSchedule& each : kNamedSchedules) names.emplace_back(each.name);
  return names;
}

}  // namespace tutti
