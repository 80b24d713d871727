// Text helpers: names in tables, lists, durations, numbers, letter case, hexadecimal digits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::internal {

/// The name of `value` of an enumeration that counts from 0, in the order of its values. Throws
/// kInternal naming `type` for another number.
template <class Enum, std::size_t n>
std::string_view name_in(const std::string_view (&names)[n], Enum value, const char* type) {
  const auto index = static_cast<std::size_t>(value);
  if (index < n) return names[index];
  fail(ErrorCode::kInternal, type, ": no such value: ", static_cast<int>(value));
}

/// Throws kInvalidArgument with the text of `parts` unless `condition` holds. Parts are computed in
/// any case: for those that take time there is fail().
template <class Condition, class... Parts>
void require(const Condition& condition, const Parts&... parts) {
  if (!condition) fail(ErrorCode::kInvalidArgument, parts...);
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

/// "a, b, c", or the first eight of a longer range and how many there are.
template <class Range>
std::string brief_list(const Range& range) {
  constexpr std::size_t kMaxListed = 8;
  std::string text;
  std::size_t number = 0;
  for (const auto& element : range) {
    if (number++ == kMaxListed) return concat(text, ", ... (", std::size(range), " in all)");
    if (number > 1) text += ", ";
    text += concat(element);
  }
  return text;
}

/// Returns how many characters of `a` to insert, remove, replace or swap with the next one, so that
/// it becomes `b` (Damerau, 1964).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// "1.5".
std::string seconds_text(Duration duration);

/// Returns the number that the whole of `text` is, or nothing.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

/// Returns the text with its ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// Returns true if `text` has only ASCII letters, digits and characters of `others`.
bool has_only_alphanumerics_and(std::string_view others, std::string_view text);

/// Returns two hexadecimal digits for each byte.
std::string hex_of(std::span<const std::byte> bytes);

}  // namespace tutti::internal

namespace tutti {

/// The parts between separators: "a,b" is {"a", "b"}, "a,,b" has an empty one in the middle, "" has
/// none. A separator at the end begins no further part.
inline std::vector<std::string> split_text(std::string_view text, char separator = ',') {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

/// `text` as messages show it: valid UTF-8 in one line, whatever the text is. Control characters,
/// line separators and bytes that are no UTF-8 are shown as '?', one each; what is longer than
/// `most` bytes is cut between two characters and ends in "...".
std::string one_line(std::string_view text, std::size_t most = 60);

}  // namespace tutti
