// Conversion of update rules to and from JSON, which is sent to processes that store variables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/update_rule.h"

namespace tutti {

/// Returns the rule as one line of JSON, equal for equal rules: {"rule":"sgd","momentum":0.9,
/// "nesterov":false}. Numbers are preserved bit for bit. Throws kUnimplemented, naming the rule, if
/// it has no describe(), and kInvalidArgument, naming the number, if a number is not finite.
std::string describe_update_rule(const UpdateRule& rule);

/// Returns a rule whose updates are bit-identical to those of the rule that describe_update_rule()
/// described. Throws kInvalidArgument, naming missing or unknown keys, for an invalid description,
/// and kNotFound, listing the names, if the rule is not registered.
std::shared_ptr<const UpdateRule> make_update_rule(std::string_view description);

/// Function that creates a rule from the result of UpdateRule::describe().
using UpdateRuleFactory = std::function<std::shared_ptr<const UpdateRule>(const Json& description)>;

/// Registers a custom rule for make_update_rule(). Call it in every task that may store variables
/// updated with this rule. Throws kAlreadyExists if the name is in use. Thread-safe.
void register_update_rule(const std::string& name, UpdateRuleFactory factory);
/// Returns the names of tutti's rules, followed by the names of registered rules.
std::vector<std::string> registered_update_rules();

}  // namespace tutti
