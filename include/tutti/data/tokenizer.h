// Tokenizers: conversion of text to the token numbers of a vocabulary, and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

namespace internal {
struct BytePairRules;
}  // namespace internal

/// Byte-pair encoding over bytes, as in GPT-2, Llama 3 and Qwen 2. A text is split into words;
/// within a word, neighbouring tokens are merged in the order in which the merges were learnt. The
/// results agree with Hugging Face's `tokenizers`. Immutable value type. Thread-safe.
class BytePairTokenizer {
 public:
  explicit BytePairTokenizer(std::shared_ptr<const internal::BytePairRules> rules);

  /// Returns the tokens of a text in UTF-8 (or any other bytes). Special tokens in the text
  /// ("<|endoftext|>") become their numbers. No special tokens are added at the beginning or
  /// end, as with Hugging Face's `encode(text, add_special_tokens=False)`.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// Returns the text of the tokens, including special ones. It may contain any bytes, because a
  /// token may hold part of a character. decode(encode(text)) is the normalized text, with a
  /// leading space if the tokenizer adds one, and without the spaces that an added token absorbs.
  /// Throws kOutOfRange, naming the number, if a number does not belong to a token.
  std::string decode(std::span<const std::int64_t> tokens) const;

  /// Returns the largest token number plus 1, which is the number of rows that an Embedding needs.
  std::int64_t vocabulary_size() const;
  /// Returns the id of the token with these bytes ("<|endoftext|>", " the"), or throws kNotFound.
  std::int64_t number_of(std::string_view token) const;

 private:
  std::shared_ptr<const internal::BytePairRules> rules_;
};

/// Reads Hugging Face's tokenizer.json: a BPE model, Unicode's normal forms (NFC, NFD, NFKC, NFKD),
/// the pre-tokenizers ByteLevel, Digits and Split (with the regular expressions of GPT-2, GPT-4,
/// Llama 3 and Qwen 2), and added tokens. The file's settings for padding and truncation are not
/// applied, which is logged once. `source` names the file in errors. Throws kInvalidArgument for a
/// damaged file, and kUnimplemented, naming the part, for a file with a part that is not listed
/// here.
BytePairTokenizer parse_tokenizer(std::string_view json, const std::string& source);
/// Reads GPT-2's vocab.json and merges.txt. These files do not mark special tokens: only the listed
/// `special_tokens` count as special, such as `{"<|endoftext|>"}`. Throws as parse_tokenizer()
/// does.
BytePairTokenizer parse_gpt2_tokenizer(std::string_view vocabulary, std::string_view merges,
                                       const std::string& source,
                                       const std::vector<std::string>& special_tokens = {});

/// Same as the functions above, but for files. Throw kNotFound or kUnavailable, naming the path.
BytePairTokenizer read_tokenizer(const std::string& path);
BytePairTokenizer read_gpt2_tokenizer(const std::string& vocabulary_path,
                                      const std::string& merges_path,
                                      const std::vector<std::string>& special_tokens = {});

// Training.

/// Learns byte pairs from a text, which it splits as GPT-2 does, until there are `vocabulary_size`
/// tokens or no pair occurs twice. It merges the most frequent pair first; among equally frequent
/// pairs, the one with the lowest numbers. Returns a tokenizer.json for parse_tokenizer() and
/// Hugging Face's `tokenizers`, equal to that of their BpeTrainer with the initial alphabet of
/// bytes. Special tokens have the first numbers; the 256 bytes follow. Throws kInvalidArgument if
/// `vocabulary_size` is too small for these.
std::string train_tokenizer(std::string_view text, std::int64_t vocabulary_size,
                            const std::vector<std::string>& special_tokens = {});

}  // namespace tutti
