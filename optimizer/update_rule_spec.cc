// Update rules as JSON: names, parsing and registration.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/update_rule_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/names.h"
#include "optimizer/optimizer_state.h"
#include "tutti/core/error.h"
#include "tutti/core/json_values.h"
#include "tutti/core/sync.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using Rule = std::shared_ptr<const UpdateRule>;
using Entry = std::pair<std::string, UpdateRuleFactory>;

Rule make_described(const Json& description);

Rule make_sgd(const Json& d) {
  const double momentum = d.at("momentum").as_double();
  return std::make_shared<SgdRule>(d.at("nesterov").as_bool() ? SgdRule::nesterov(momentum)
                                                              : SgdRule(momentum));
}

Rule make_moving_average(const Json& d) {
  EmaOptions options{.momentum = d.at("momentum").as_double()};
  const Json& frequency = d.at("overwrite_frequency");
  if (!frequency.is_null()) options.overwrite_frequency = frequency.as_int();
  return std::make_shared<internal::MovingAverageRule>("ema", options);
}

/// A DecoupledWeightDecayRule together with the rule that it wraps, which must outlive it.
struct DecayingRule {
  explicit DecayingRule(Rule inner) : then(std::move(inner)), rule(*then) {}
  Rule then;
  internal::DecoupledWeightDecayRule rule;
};

Rule make_decoupled_weight_decay(const Json& d) {
  const Rule then = make_described(d.at("then"));
  internal::require(!then->uses_norms(), "decoupled_weight_decay: '", then->name(),
                    "' uses norms of the whole variable; expected a rule without norms");
  const auto both = std::make_shared<const DecayingRule>(then);
  return {both, &both->rule};
}

/// Creates a rule from its hyperparameters, all of which must be present.
template <class MadeRule>
Rule described_rule(const Json& d) {
  typename MadeRule::Hyperparameters hyper;
  internal::for_each_field(hyper, [&]<class Field>(std::string_view name, Field& field) {
    field = value_of<Field>(d.at(name));
  });
  return std::make_shared<MadeRule>(hyper);
}

std::vector<Entry> builtin_rules() {
  return {{"adadelta", &described_rule<AdadeltaRule>},
          {"adagrad", &described_rule<AdagradRule>},
          {"adam", &described_rule<AdamRule>},
          {"ftrl", &described_rule<FtrlRule>},
          {"lamb", &described_rule<LambRule>},
          {"lars", &described_rule<LarsRule>},
          {"lion", &described_rule<LionRule>},
          {"nadam", &described_rule<NadamRule>},
          {"rmsprop", &described_rule<RmspropRule>},
          {"sgd", make_sgd},
          {"ema", make_moving_average},
          {"decoupled_weight_decay", make_decoupled_weight_decay}};
}

struct Registry {
  Mutex mutex;
  std::vector<Entry> entries TUTTI_GUARDED_BY(mutex) = builtin_rules();
};

Registry& registry() {
  static Registry instance;
  return instance;
}

UpdateRuleFactory factory_of(const std::string& name) {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  const auto entry = std::ranges::find(all.entries, name, &Entry::first);
  if (entry == all.entries.end()) {
    fail(ErrorCode::kNotFound, "make_update_rule: there is no rule '", name, "'; expected one of ",
         internal::choices(internal::names_of(all.entries, &Entry::first), name),
         "; call register_update_rule() in every task");
  }
  return entry->second;
}

Rule make_described(const Json& description) {
  const std::string& name = description.at("rule").as_string();
  Rule rule = factory_of(name)(description);
  internal::require(rule, "make_update_rule: the function registered for '", name,
                    "' returned no rule");
  // A number that the factory did not read would otherwise be lost silently.
  const Json made = rule->describe();
  for (const Json::Member& member : description.as_object()) {
    if (made.find(member.first)) continue;
    fail(ErrorCode::kInvalidArgument, "'", name, "' has no member '", member.first,
         "'; expected one of the members of ", made.dump());
  }
  return rule;
}

void check_finite(const Json& value, const UpdateRule& rule, const std::string& member) {
  value.visit([&]<class T>(const T& held) {
    if constexpr (std::is_same_v<T, double>) {
      if (std::isfinite(held)) return;
      fail(ErrorCode::kInvalidArgument, "describe_update_rule: '", member, "' of '", rule.name(),
           "' cannot be serialized; expected a finite number, got ", held);
    } else if constexpr (std::is_same_v<T, Json::Array>) {
      for (const Json& each : held) check_finite(each, rule, member);
    } else if constexpr (std::is_same_v<T, Json::Object>) {
      for (const Json::Member& each : held) check_finite(each.second, rule, each.first);
    }
  });
}

}  // namespace

std::string describe_update_rule(const UpdateRule& rule) {
  const Json description = rule.describe();
  check_finite(description, rule, "description");
  return description.dump();
}

std::shared_ptr<const UpdateRule> make_update_rule(std::string_view description) {
  const Json parsed = Json::parse(description, "description of an update rule");
  try {
    return make_described(parsed);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) throw;
    throw error.with_context(concat("make_update_rule(", description, ")"));
  }
}

void register_update_rule(const std::string& name, UpdateRuleFactory factory) {
  internal::require(!name.empty() && factory,
                    "register_update_rule: expected a name and a function, got '", name, "' and ",
                    factory ? "a function" : "no function");
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  if (std::ranges::find(all.entries, name, &Entry::first) != all.entries.end()) {
    fail(ErrorCode::kAlreadyExists, "register_update_rule: '", name, "' is already registered");
  }
  all.entries.emplace_back(name, std::move(factory));
}

std::vector<std::string> registered_update_rules() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return internal::names_of(all.entries, &Entry::first);
}

}  // namespace tutti
