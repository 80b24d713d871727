// Update rules as JSON: their names and hyperparameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/core/fields.h"
#include "tutti/core/json.h"

namespace tutti::internal {

/// {"rule": name, "momentum": 0.9, ...}: what UpdateRule::describe() gives.
template <class Hyperparameters>
Json rule_json(std::string_view name, const Hyperparameters& hyperparameters) {
  Json json = Json::object();
  json.set("rule", name);
  for_each_field(hyperparameters, [&](std::string_view field, const auto& value) {
    json.set(std::string(field), value);
  });
  return json;
}

}  // namespace tutti::internal
