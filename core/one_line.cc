// Text of others as a part of a message that is one line.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/one_line.h"

#include <cstdint>

namespace tutti {
namespace {

struct Character {
  std::size_t size = 1;    // in bytes
  std::uint32_t code = 0;  // 0: no character
};

std::size_t size_by_first_byte(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if ((first & 0xF0) == 0xE0) return 3;
  return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

/// The character at the beginning of `rest`, which is not empty.
Character first_character(std::string_view rest) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
  const std::size_t size = size_by_first_byte(byte(0));
  if (size == 1) return {1, byte(0)};
  if (size == 0 || size > rest.size()) return {};
  std::uint32_t code = byte(0) & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[size] || code > 0x10FFFF || is_surrogate) return {};
  return {size, code};
}

bool is_shown(std::uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  return !is_control && code != 0x2028 && code != 0x2029;
}

}  // namespace

std::string one_line(std::string_view text, std::size_t most) {
  std::string line;
  for (std::string_view rest = text; !rest.empty();) {
    const Character character = first_character(rest);
    const std::string_view shown =
        is_shown(character.code) ? rest.substr(0, character.size) : std::string_view("?");
    if (line.size() + shown.size() > most) return line + "...";
    line += shown;
    rest.remove_prefix(character.size);
  }
  return line;
}

}  // namespace tutti
