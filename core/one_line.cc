// Text of others as a part of a message that is one line.
// SPDX-License-Identifier: Apache-2.0
#include "core/one_line.h"

#include <algorithm>
#include <cstdint>

namespace tutti {
namespace {

/// Length of the well-formed UTF-8 sequence at the front (Unicode table 3-7), or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

/// The code of the well-formed sequence of `size` bytes at the front; 0: there is none.
std::uint32_t first_code(std::string_view rest, std::size_t size) {
  if (size == 0) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
  std::uint32_t code = size == 1 ? byte(0) : byte(0) & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3F);
  return code;
}

bool is_shown(std::uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  return !is_control && code != 0x2028 && code != 0x2029;
}

}  // namespace

std::string one_line(std::string_view text, std::size_t most) {
  std::string line;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t size = utf8_length(rest);
    const std::string_view shown =
        is_shown(first_code(rest, size)) ? rest.substr(0, size) : std::string_view("?");
    if (line.size() + shown.size() > most) return line + "...";
    line += shown;
    rest.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return line;
}

}  // namespace tutti
