// Update rules as values that travel: to the process that holds the variable.
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

/// The rule as one line of JSON, the same text for the same rule: {"rule":"sgd","momentum":0.9,
/// "nesterov":false}. Numbers survive bit for bit. Throws kUnimplemented naming a rule without
/// describe(), kInvalidArgument naming a number that is not finite.
std::string describe_update_rule(const UpdateRule& rule);

/// The rule that describe_update_rule() wrote: the same bits for the same elements. Throws
/// kInvalidArgument for a text that is no description (what is missing or unknown is named),
/// kNotFound listing the names when nothing of this name is registered.
std::shared_ptr<const UpdateRule> make_update_rule(std::string_view description);

/// Makes a rule of what its describe() says.
using UpdateRuleFactory = std::function<std::shared_ptr<const UpdateRule>(const Json& description)>;

/// Makes a rule of your own known to make_update_rule(), in every task that may hold its variables.
/// Throws kAlreadyExists for a name taken twice. Any thread.
void register_update_rule(const std::string& name, UpdateRuleFactory factory);
/// Those of tutti, then what was registered.
std::vector<std::string> registered_update_rules();

}  // namespace tutti
