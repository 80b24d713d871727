// Environment variables as a value, so that whatever reads them can be tested and repeated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

/// Variables by name. Resolvers read one when they are made; what the process changes later does
/// not reach them. A value type.
class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  /// No variables.
  Environment() = default;
  /// `Environment({{"TF_CONFIG", text}})`.
  Environment(std::initializer_list<Variables::value_type> variables) : variables_(variables) {}
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}
  /// Those of this process, now.
  static Environment of_process();

  /// Nothing when the variable is not set. An empty text counts as set.
  std::optional<std::string> find(std::string_view name) const;
  bool has(std::string_view name) const { return variables_.contains(name); }
  /// Throws kFailedPrecondition "<who>: the variable <name> is not set; ..." with `remedy`.
  const std::string& at(std::string_view who, std::string_view name, std::string_view remedy) const;
  /// The first of `names` that is set.
  std::optional<std::string> first_of(const std::vector<std::string>& names) const;
  /// A whole number. Nothing when not set; throws kInvalidArgument naming the variable, what it
  /// holds and the range when it holds anything else.
  std::optional<int> find_int(std::string_view name, int smallest, int largest) const;

 private:
  Variables variables_;
};

}  // namespace tutti
