// Update rules as text, for the process that holds the variable.
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
/// "nesterov":false}. Numbers are preserved bit for bit. Throws kUnimplemented naming a rule
/// without describe(), and kInvalidArgument naming a number that is not finite.
std::string describe_update_rule(const UpdateRule& rule);

/// Parses the result of describe_update_rule(); the rule produces the same bits. Throws
/// kInvalidArgument, naming missing or unknown members, for an invalid description, and kNotFound,
/// listing the names, if the rule is not registered.
std::shared_ptr<const UpdateRule> make_update_rule(std::string_view description);

/// Makes a rule from the result of its describe().
using UpdateRuleFactory = std::function<std::shared_ptr<const UpdateRule>(const Json& description)>;

/// Registers a custom rule for make_update_rule(); needed in every task that may hold its
/// variables. Throws kAlreadyExists if the name is taken. Thread-safe.
void register_update_rule(const std::string& name, UpdateRuleFactory factory);
/// Returns the names of tutti's rules, followed by registered ones.
std::vector<std::string> registered_update_rules();

}  // namespace tutti
