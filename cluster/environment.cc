// Environment variables as a value.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/environment.h"

#include <unistd.h>

#include <charconv>

#include "cluster/json_place.h"
#include "tutti/core/error.h"

namespace tutti {

Environment Environment::of_process() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == text.npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::find(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Environment::at(std::string_view who, std::string_view name,
                                   std::string_view remedy) const {
  const auto found = variables_.find(name);
  if (found != variables_.end()) return found->second;
  fail(ErrorCode::kFailedPrecondition, who, ": the variable ", name, " is not set; ", remedy);
}

std::optional<std::string> Environment::first_of(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (auto value = find(name)) return value;
  }
  return std::nullopt;
}

std::optional<int> Environment::find_int(std::string_view name, int smallest, int largest) const {
  const std::optional<std::string> text = find(name);
  if (!text) return std::nullopt;
  const std::optional<int> number = internal::parse_index(*text, largest);
  if (number && *number >= smallest) return number;
  internal::fail_place(name, concat("a whole number from ", smallest, " to ", largest),
                       internal::shown(Json(*text)));
}

}  // namespace tutti
