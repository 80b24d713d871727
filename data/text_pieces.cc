// Splitting of texts into pieces (words, numbers, gaps), within which byte-pair tokenizers merge
// tokens.
// SPDX-License-Identifier: Apache-2.0
#include "data/text_pieces.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Regular expression of Llama 3 and Qwen 2, before and after the part for numbers.
constexpr std::string_view kBeforeNumbers =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
constexpr std::string_view kBehindNumbers =
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool ends_line(const Character& character) {
  return character.code == U'\r' || character.code == U'\n';
}

/// Returns the end of the run of characters that begins at `at` and for which `accepts` returns
/// true; the run has at most `most` characters.
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

/// Returns the length, in bytes, of 's, 't, 're, 've, 'm, 'll or 'd at the beginning; 0 if there is
/// none. Llama 3 ignores case, so the long s (U+017F) counts as an s.
std::size_t contraction_length(std::string_view text, bool any_case) {
  if (text[0] != '\'' || text.size() < 2) return 0;
  constexpr std::string_view kLongS = "\xC5\xBF";
  if (any_case && text.substr(1, 2) == kLongS) return 3;
  const std::string_view given = text.substr(1, 2);
  const std::string letters = any_case ? lower_case(given) : std::string(given);
  if (std::string_view("stmd").find(letters[0]) != std::string_view::npos) return 2;
  return letters == "re" || letters == "ve" || letters == "ll" ? 3 : 0;
}

/// Returns the length in bytes of a run of spaces. At the end of the text, it includes all spaces.
/// Elsewhere, it excludes the last of several spaces, which belongs to the next piece.
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

/// Returns the length of the leading whitespace up to and including the last line end in it, or 0.
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

// Unicode properties and normal forms of UTF-8 texts, from utf8proc.

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

/// Returns true for non-ASCII characters with the Unicode property White_Space: the separators and
/// the control character NEL.
bool is_space(char32_t code, utf8proc_category_t category) {
  return code == 0x85 || (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

/// Returns true for symbols with the property Other_Alphabetic: circled and squared letters. (All
/// other characters with this property are marks.)
bool is_enclosed_letter(char32_t code) {
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

/// Appends the normal form of `text`, which must be valid UTF-8.
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
