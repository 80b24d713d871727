// Cutting lists that people type.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace tutti
