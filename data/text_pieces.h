// Texts cut into the pieces that byte-pair tokenizers merge bytes within: words, numbers, gaps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tutti::internal {

/// Patterns that cut a text into pieces: the regular expressions of these models, and Digits of
/// Hugging Face's pre-tokenizers.
enum class TextPattern {
  kNone,    // not at all
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,  // also GPT-4's: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ...
  kQwen2,   // the same with numbers of one digit
  kDigits,  // each digit is a piece, and each run of other characters
  kDigitRuns,  // each run of digits is a piece, and each run of other characters
};

/// Returns the pattern with this regular expression. Throws kUnimplemented for any other one.
TextPattern text_pattern_of(std::string_view regular_expression);

/// Returns the length in bytes of the first piece of a text, which must not be empty. Bytes that
/// are not UTF-8 count as characters that are neither letters, numbers nor spaces.
std::size_t piece_length(std::string_view text, TextPattern pattern);

}  // namespace tutti::internal
