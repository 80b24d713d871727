// Lists as text: cut after the first few in messages, taken apart where people type them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/text.h"

namespace tutti::internal {

// Lists in messages, cut after the first few.

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

}  // namespace tutti::internal

namespace tutti {

// Cutting lists that people type.

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

}  // namespace tutti
