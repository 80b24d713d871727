// Suggestions for unknown names, and text helpers.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <cstdint>
#include <iomanip>
#include <numeric>

namespace tutti::internal {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last.back();
}

std::string choices(const std::vector<std::string>& names, std::string_view given) {
  std::string text = join(names);
  // Two names are similar if their edit distance is below `least`. For a short name, `least` is 2,
  // because two edits would turn it into another word.
  std::size_t least = given.size() > 4 ? 3 : 2;
  std::string_view nearest;
  for (const std::string& name : names) {
    std::size_t apart = edit_distance(given, name);
    // A name that is both truncated and misspelt is still a near match: "miror" for mirrored.
    if (given.size() > 4)
      apart =
          std::min(apart, 1 + edit_distance(given, std::string_view(name).substr(0, given.size())));
    if (apart >= least) continue;
    least = apart;
    nearest = name;
  }
  return nearest.empty() || given.empty() ? text : concat(text, "; did you mean '", nearest, "'?");
}

std::string seconds_text(Duration duration) {
  return concat(std::setiosflags(std::ios::fixed), std::setprecision(1),
                std::chrono::duration<double>(duration).count());
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool has_only_alphanumerics_and(std::string_view others, std::string_view text) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string digits;
  for (const std::byte byte : bytes) {
    digits += "0123456789abcdef"[std::to_integer<int>(byte) / 16];
    digits += "0123456789abcdef"[std::to_integer<int>(byte) % 16];
  }
  return digits;
}

}  // namespace tutti::internal

namespace tutti {

// Conversion of text from other programs for use in a one-line message.

namespace {

/// Returns the length of the well-formed UTF-8 sequence at the front (Unicode table 3-7), or 0.
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

/// Returns the code point of the well-formed sequence of `size` bytes at the front; 0 for size 0.
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
