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

/// Returns the name of `value`. `names` holds the names of the enumeration's values 0, 1, ...
/// Throws kInternal, naming `type`, for any other value.
template <class Enum, std::size_t n>
std::string_view name_in(const std::string_view (&names)[n], Enum value, const char* type) {
  const auto index = static_cast<std::size_t>(value);
  if (index < n) return names[index];
  fail(ErrorCode::kInternal, type, ": expected a value below ", n, ", got ",
       static_cast<int>(value));
}

/// Throws kInvalidArgument with the text of `parts` unless `condition` holds. The parts are always
/// evaluated; use fail() if evaluating them is slow.
template <class Condition, class... Parts>
void require(const Condition& condition, const Parts&... parts) {
  if (!condition) fail(ErrorCode::kInvalidArgument, parts...);
}

/// Returns the names of a table's entries, in order. `name_of` is, for example, &Entry::name.
template <class Table, class NameOf>
std::vector<std::string> names_of(const Table& table, NameOf name_of) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(std::invoke(name_of, entry));
  return names;
}

/// Returns "a, b, c" for the error about an unknown name, followed by "; did you mean 'b'?" if a
/// name is similar: it differs from `given` in a letter or two, or has almost the same beginning.
std::string choices(const std::vector<std::string>& names, std::string_view given);

/// Returns the entry of `table` named `name`. Throws kInvalidArgument for an unknown name, with
/// `who`, the `kind` of entry and the known names.
template <class Table, class NameOf>
const auto& named_entry(const Table& table, NameOf name_of, std::string_view name,
                        std::string_view who, std::string_view kind) {
  const auto found = std::ranges::find(table, name, name_of);
  if (found != std::end(table)) return *found;
  fail(ErrorCode::kInvalidArgument, who, ": no ", kind, " is named '", name, "'; expected one of ",
       choices(names_of(table, name_of), name));
}

/// Returns "a, b, c", or the first eight elements of a longer range, followed by its size.
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

/// Returns the minimum number of edits that turn `a` into `b`. An edit inserts, removes or replaces
/// one character, or swaps two neighbours (Damerau, 1964).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the duration in seconds with one decimal: "1.5".
std::string seconds_text(Duration duration);

/// Parses a number; returns nullopt if `text` is not exactly one number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

/// Returns the text with its ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// Returns true if `text` has only ASCII letters, digits and characters from `others`.
bool has_only_alphanumerics_and(std::string_view others, std::string_view text);

/// Returns two hexadecimal digits for each byte.
std::string hex_of(std::span<const std::byte> bytes);

}  // namespace tutti::internal

namespace tutti {

/// Returns the parts between separators: "a,b" gives {"a", "b"}, "a,,b" has an empty part in the
/// middle, "" gives no parts. A separator at the end does not start another part.
inline std::vector<std::string> split_text(std::string_view text, char separator = ',') {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

/// Returns `text` for use in a message, as valid UTF-8 on one line. Control characters, line
/// separators and invalid bytes each become '?'. Text longer than `most` bytes is truncated between
/// two characters and ends in "...".
std::string one_line(std::string_view text, std::size_t most = 60);

}  // namespace tutti
