// Text splitting for tokenizers; Unicode character classes and normal forms.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Patterns that split a text into pieces: the regular expressions of the named models, and Hugging
/// Face's pre-tokenizer Digits.
enum class TextPattern {
  kNone,    // no split
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,  // also GPT-4's: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ...
  kQwen2,   // same as kLlama3, but splits numbers into single digits
  kDigits,  // one piece per digit and per run of other characters
  kDigitRuns,  // one piece per run of digits and per run of other characters
};

/// Returns the TextPattern for a regular expression. Throws kUnimplemented if it is unknown.
TextPattern text_pattern_of(std::string_view regular_expression);

/// Returns the length in bytes of the first piece of a text, which must not be empty. A byte that
/// is not valid UTF-8 counts as a character that is not a letter, a number or a space.
std::size_t piece_length(std::string_view text, TextPattern pattern);

/// Classes of characters that the patterns of byte-pair tokenizers distinguish.
enum class CharacterKind : std::uint8_t { kLetter, kNumber, kSpace, kOther };
/// Returns the kind, which is determined by Unicode's general categories L* and N* and the property
/// White_Space.
CharacterKind kind_of(char32_t code_point);
/// Returns true if regular expressions count the character as part of a word (`\w`).
bool is_word_character(char32_t code_point);

struct Character {
  char32_t code = 0;
  std::size_t length = 1;  // bytes
  CharacterKind kind = CharacterKind::kOther;
  bool is_valid = false;  // false for a byte that is not UTF-8
};
/// Returns the character at byte `at`, which must be within the text.
Character character_at(std::string_view text, std::size_t at);
/// Returns the character that ends just before byte `end` > 0.
Character character_before(std::string_view text, std::size_t end);

/// Normalization forms of Unicode Standard Annex 15.
enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
/// Returns the text in a normal form; bytes that are not UTF-8 remain as they are.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace tutti::internal
