// Unicode properties and normal forms of UTF-8 texts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Classes of characters that the patterns of byte-pair tokenizers distinguish.
enum class CharacterKind : std::uint8_t { kLetter, kNumber, kSpace, kOther };
/// Returns the kind by Unicode's general categories L* and N* and its property White_Space.
CharacterKind kind_of(char32_t code_point);
/// Returns true if regular expressions count the character as part of a word (`\w`).
bool is_word_character(char32_t code_point);

struct Character {
  char32_t code = 0;
  std::size_t length = 1;  // bytes
  CharacterKind kind = CharacterKind::kOther;
  bool is_valid = false;  // one byte that is not UTF-8 otherwise
};
/// Returns the character at byte `at` of a text, which must be within it.
Character character_at(std::string_view text, std::size_t at);
/// Returns the character that ends where `end` > 0 begins.
Character character_before(std::string_view text, std::size_t end);

/// Normal forms of Unicode Standard Annex 15.
enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
/// Returns the text in a normal form; bytes that are not UTF-8 remain as they are.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace tutti::internal
