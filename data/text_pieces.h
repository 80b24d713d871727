// Texts cut into the pieces that byte-pair tokenizers merge bytes within: words, numbers, gaps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti::internal {

/// How a text is cut: the regular expressions of these models.
enum class TextPattern {
  kNone,    // not at all
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,  // also GPT-4's: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ...
  kQwen2,   // the same with numbers of one digit
};

/// The pattern with this regular expression. Throws kUnimplemented for one that is none of them.
TextPattern text_pattern_of(std::string_view regular_expression);

/// Bytes of the piece that the text begins with; the text is not empty. Bytes that are not UTF-8
/// are characters that are neither letters, numbers nor spaces.
std::size_t piece_length(std::string_view text, TextPattern pattern);

/// What a character is for these patterns.
enum class CharacterKind : std::uint8_t { kLetter, kNumber, kSpace, kOther };
/// By Unicode's general categories L* and N* and its white space.
CharacterKind kind_of(char32_t code_point);

}  // namespace tutti::internal
