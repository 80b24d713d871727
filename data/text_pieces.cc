// Texts cut into the pieces that byte-pair tokenizers merge bytes within: words, numbers, gaps.
// SPDX-License-Identifier: Apache-2.0
#include "data/text_pieces.h"

#include <algorithm>
#include <string>

#include "data/unicode.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Of Llama 3 and Qwen 2, before and behind what they write for numbers.
constexpr std::string_view kBeforeNumbers =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
constexpr std::string_view kBehindNumbers =
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool ends_line(const Character& character) {
  return character.code == U'\r' || character.code == U'\n';
}

/// The end of the characters from `at` on, at most `most` of them, that are as `accepts` says.
template <class Accepts>
std::size_t run_end(std::string_view text, std::size_t at, const Accepts& accepts,
                    std::size_t most = SIZE_MAX) {
  for (; at < text.size() && most > 0; --most) {
    const Character next = character_at(text, at);
    if (!accepts(next)) break;
    at += next.length;
  }
  return at;
}

std::size_t run_end(std::string_view text, std::size_t at, CharacterKind kind) {
  return run_end(text, at, [&](const Character& next) { return next.kind == kind; });
}

/// Bytes of 's, 't, 're, 've, 'm, 'll or 'd at the beginning, in small letters or, for Llama 3, in
/// any; 0: none of them. The long s is an s in any letters.
std::size_t contraction_length(std::string_view text, bool any_case) {
  if (text[0] != '\'' || text.size() < 2) return 0;
  constexpr std::string_view kLongS = "\xC5\xBF";
  if (any_case && text.substr(1, 2) == kLongS) return 3;
  std::string letters(text.substr(1, 2));
  if (any_case)
    for (char& c : letters)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (std::string_view("stmd").find(letters[0]) != std::string_view::npos) return 2;
  return letters == "re" || letters == "ve" || letters == "ll" ? 3 : 0;
}

/// Of spaces: all of them at the end of a text; else all but the last, which belongs to what
/// follows, if there are two or more.
std::size_t gap_length(std::string_view text) {
  const std::size_t end = run_end(text, 0, CharacterKind::kSpace);
  if (end == text.size()) return end;
  const std::size_t last = end - character_before(text, end).length;
  return last > 0 ? last : end;
}

std::size_t gpt2_length(std::string_view text) {
  if (const std::size_t length = contraction_length(text, false)) return length;
  const std::size_t start = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const CharacterKind kind = character_at(text, start).kind;
  return kind == CharacterKind::kSpace ? gap_length(text) : run_end(text, start, kind);
}

/// Of spaces that hold ends of lines: up to the last of these. 0: there is none.
std::size_t lines_length(std::string_view text) {
  const std::size_t end = run_end(text, 0, CharacterKind::kSpace);
  const std::size_t last = text.substr(0, end).find_last_of("\r\n");
  return last == std::string_view::npos ? 0 : last + 1;
}

std::size_t llama3_length(std::string_view text, std::size_t most_digits) {
  if (const std::size_t length = contraction_length(text, true)) return length;
  const Character first = character_at(text, 0);
  if (first.kind == CharacterKind::kLetter) return run_end(text, 0, CharacterKind::kLetter);
  if (first.kind == CharacterKind::kNumber) {
    return run_end(
        text, 0, [](const Character& next) { return next.kind == CharacterKind::kNumber; },
        most_digits);
  }
  if (!ends_line(first)) {
    const std::size_t end = run_end(text, first.length, CharacterKind::kLetter);
    if (end > first.length) return end;
  }
  const std::size_t start = text[0] == ' ' ? 1 : 0;
  const std::size_t end = run_end(text, start, CharacterKind::kOther);
  if (end > start) return run_end(text, end, ends_line);
  const std::size_t lines = lines_length(text);
  return lines > 0 ? lines : gap_length(text);
}

std::size_t digits_length(std::string_view text, bool one_by_one) {
  const Character first = character_at(text, 0);
  if (first.kind != CharacterKind::kNumber) {
    return run_end(text, 0, [](const Character& c) { return c.kind != CharacterKind::kNumber; });
  }
  return one_by_one ? first.length : run_end(text, 0, CharacterKind::kNumber);
}

}  // namespace

TextPattern text_pattern_of(std::string_view expression) {
  if (expression == kGpt2Expression) return TextPattern::kGpt2;
  if (expression.starts_with(kBeforeNumbers) && expression.ends_with(kBehindNumbers)) {
    expression.remove_prefix(kBeforeNumbers.size());
    if (expression.size() > kBehindNumbers.size()) expression.remove_suffix(kBehindNumbers.size());
    if (expression == R"(\p{N}{1,3})") return TextPattern::kLlama3;
    if (expression == R"(\p{N})") return TextPattern::kQwen2;
  }
  fail(ErrorCode::kUnimplemented,
       "tokenizer: expected the regular expression of GPT-2, Llama 3 or ", "Qwen 2, got ",
       expression);
}

std::size_t piece_length(std::string_view text, TextPattern pattern) {
  switch (pattern) {
    case TextPattern::kNone:
      return text.size();
    case TextPattern::kGpt2:
      return gpt2_length(text);
    case TextPattern::kLlama3:
      return llama3_length(text, 3);
    case TextPattern::kQwen2:
      return llama3_length(text, 1);
    case TextPattern::kDigits:
      return digits_length(text, true);
    case TextPattern::kDigitRuns:
      return digits_length(text, false);
  }
  return text.size();
}

}  // namespace tutti::internal
