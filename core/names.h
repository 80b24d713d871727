// Names in tables: of the values of enumerations, and of entries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::internal {

/// The name of `value` of an enumeration that counts from 0, in the order of its values. Throws
/// kInternal naming `type` for another number.
template <class Enum, std::size_t n>
std::string_view name_in(const std::string_view (&names)[n], Enum value, const char* type) {
  const auto index = static_cast<std::size_t>(value);
  if (index < n) return names[index];
  fail(ErrorCode::kInternal, type, ": no such value: ", static_cast<int>(value));
}

/// The names of the entries of a table, in its order. `name_of` gives that of one: &Entry::name.
template <class Table, class NameOf>
std::vector<std::string> names_of(const Table& table, NameOf name_of) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(std::invoke(name_of, entry));
  return names;
}

/// "a, b, c" for the message about a name that is none of them, with "; did you mean 'b'?" where
/// one differs by a letter or two, or begins so.
std::string choices(const std::vector<std::string>& names, std::string_view given);

/// The entry of that name. Throws kInvalidArgument for another one, with `who` and what `kind` of
/// entry it is, and the names that there are.
template <class Table, class NameOf>
const auto& named_entry(const Table& table, NameOf name_of, std::string_view name,
                        std::string_view who, std::string_view kind) {
  const auto found = std::ranges::find(table, name, name_of);
  if (found != std::end(table)) return *found;
  fail(ErrorCode::kInvalidArgument, who, ": no ", kind, " is named '", name, "'; expected one of ",
       choices(names_of(table, name_of), name));
}

}  // namespace tutti::internal
