// Texts as numbers of a vocabulary, and back.
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

/// Byte-pair encoding over bytes, that of GPT-2, Llama 3 and Qwen 2: a text is cut into words, and
/// within a word neighbouring tokens are merged, those first that the tokenizer learnt first. It
/// agrees with Hugging Face's `tokenizers`. A value, immutable: any thread.
class BytePairTokenizer {
 public:
  explicit BytePairTokenizer(std::shared_ptr<const internal::BytePairRules> rules);

  /// The tokens of a text in UTF-8 (of other bytes, too). Special tokens in it
  /// ("<|endoftext|>") become their numbers; none is put in front or behind, as
  /// `encode(text, add_special_tokens=False)` there.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// Returns the text of tokens, special ones included. Any bytes: a token may hold a part of a
  /// character. decode(encode(text)) is the normalized text, with a space in front where the
  /// tokenizer adds one, and without the spaces that an added token takes along. Throws kOutOfRange
  /// naming a number that does not belong to a token.
  std::string decode(std::span<const std::int64_t> tokens) const;

  /// The largest number of a token, plus 1: rows of an Embedding.
  std::int64_t vocabulary_size() const;
  /// The number of a token, given as its bytes ("<|endoftext|>", " the"). Throws kNotFound.
  std::int64_t number_of(std::string_view token) const;

 private:
  std::shared_ptr<const internal::BytePairRules> rules_;
};

/// Reads Hugging Face's tokenizer.json: a BPE model, Unicode's normal forms (NFC, NFD, NFKC, NFKD),
/// the pre-tokenizers ByteLevel, Digits and Split by the regular expressions of GPT-2, GPT-4, Llama
/// 3 and Qwen 2, and added tokens. Padding and truncation of the file are not applied, which is
/// logged once. `source` names the file in errors. Throws kInvalidArgument if it is damaged,
/// kUnimplemented naming the part if it needs anything else.
BytePairTokenizer parse_tokenizer(std::string_view json, const std::string& source);
/// GPT-2's vocab.json and merges.txt, which do not say which tokens are special: a text has them
/// only where they are listed here, `{"<|endoftext|>"}`. Errors as parse_tokenizer().
BytePairTokenizer parse_gpt2_tokenizer(std::string_view vocabulary, std::string_view merges,
                                       const std::string& source,
                                       const std::vector<std::string>& special_tokens = {});

/// The same for files. Throw kNotFound or kUnavailable naming the path.
BytePairTokenizer read_tokenizer(const std::string& path);
BytePairTokenizer read_gpt2_tokenizer(const std::string& vocabulary_path,
                                      const std::string& merges_path,
                                      const std::vector<std::string>& special_tokens = {});

// Learning one from a text.

/// Learns byte pairs from a text, as GPT-2 cuts it, until there are `vocabulary_size` tokens or no
/// pair comes twice: the most frequent pair first, of equal ones that of the lower numbers. The
/// result is a tokenizer.json, which parse_tokenizer() and Hugging Face's `tokenizers` read: it is
/// that of their BpeTrainer with the initial alphabet of bytes. The special tokens have the first
/// numbers, then come the bytes: a vocabulary of 256 and none of them is one of bytes alone.
/// Throws kInvalidArgument for a smaller vocabulary than that.
std::string train_tokenizer(std::string_view text, std::int64_t vocabulary_size,
                            const std::vector<std::string>& special_tokens = {});

}  // namespace tutti
