// Concatenation of values into text; a stopgap until every supported compiler has std::format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <utility>

namespace tutti {

/// Types that concat() and join() can write.
template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
}
|| requires(const T& value) { value.to_string(); };

/// Returns the arguments as text, one after the other. Uses operator<<, or `to_string() const` for
/// a type without operator<<.
template <class... Parts>
requires(Printable<Parts>&&...) std::string concat(const Parts&... parts) {
  std::ostringstream out;
  [[maybe_unused]] auto write = [&out](const auto& part) {
    if constexpr (requires { out << part; }) {
      out << part;
    } else {
      out << part.to_string();
    }
  };
  (write(parts), ...);
  return std::move(out).str();
}

/// Returns the elements of a range, formatted as in concat() and separated by `separator`.
template <class Range>
std::string join(const Range& range, const char* separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& element : range) {
    if (!first) text += separator;
    first = false;
    text += concat(element);
  }
  return text;
}

}  // namespace tutti
