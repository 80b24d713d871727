// Lists in messages, cut after the first few.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <string>

#include "tutti/core/text.h"

namespace tutti::internal {

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
