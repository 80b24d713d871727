// Unicode properties and normal forms of UTF-8 texts, by utf8proc.
// SPDX-License-Identifier: Apache-2.0
#include "data/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

utf8proc_category_t category_of(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_number(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

/// The property White_Space above ASCII: the separators and NEL, which is a control character.
bool is_space(char32_t code, utf8proc_category_t category) {
  return code == 0x85 || (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

/// The symbols with the property Other_Alphabetic: circled and squared letters. (All other
/// characters with it are marks.)
bool is_enclosed_letter(char32_t code) {
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

/// `text` is UTF-8.
void append_normalized(std::string_view text, NormalForm form, std::string& result) {
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size < 0) {
    fail(ErrorCode::kResourceExhausted, "utf8proc: cannot normalize a text of ", text.size(),
         " bytes: ", utf8proc_errmsg(size));
  }
  result.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
}

}  // namespace

CharacterKind kind_of(char32_t code) {
  if (code < 0x80) {
    const char32_t small = code | 0x20;
    if (small >= 'a' && small <= 'z') return CharacterKind::kLetter;
    if (code >= '0' && code <= '9') return CharacterKind::kNumber;
    const bool is_space = code == ' ' || (code >= '\t' && code <= '\r');
    return is_space ? CharacterKind::kSpace : CharacterKind::kOther;
  }
  const utf8proc_category_t category = category_of(code);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
    return CharacterKind::kLetter;
  if (is_number(category)) return CharacterKind::kNumber;
  return is_space(code, category) ? CharacterKind::kSpace : CharacterKind::kOther;
}

bool is_word_character(char32_t code) {
  constexpr char32_t kZeroWidthNonJoiner = 0x200C, kZeroWidthJoiner = 0x200D;
  const utf8proc_category_t category = category_of(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || is_enclosed_letter(code) ||
         code == kZeroWidthNonJoiner || code == kZeroWidthJoiner;
}

Character character_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1, kind_of(first), true};
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t length =
      utf8proc_iterate(bytes_of(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (length <= 0) return {};
  const auto point = static_cast<char32_t>(code);
  return {point, static_cast<std::size_t>(length), kind_of(point), true};
}

Character character_before(std::string_view text, std::size_t end) {
  constexpr std::size_t kLongest = 4;
  for (std::size_t length = 1; length <= std::min(kLongest, end); ++length) {
    const Character character = character_at(text.substr(0, end), end - length);
    if (character.is_valid && character.length == length) return character;
  }
  return {};
}

std::string normalized(std::string_view text, NormalForm form) {
  const auto is_ascii = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return std::string(text);
  std::string result;
  while (!text.empty()) {
    std::size_t valid = 0;
    for (Character next; valid < text.size(); valid += next.length) {
      next = character_at(text, valid);
      if (!next.is_valid) break;
    }
    append_normalized(text.substr(0, valid), form, result);
    if (valid < text.size()) result += text[valid++];
    text.remove_prefix(valid);
  }
  return result;
}

}  // namespace tutti::internal
