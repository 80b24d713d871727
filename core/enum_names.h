// Names of the values of enumerations, in tables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

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

}  // namespace tutti::internal
