// What a byte-pair tokenizer knows: its tokens, their merges, how texts are cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text_pieces.h"
#include "data/unicode.h"

namespace tutti::internal {

/// Lets maps of strings be asked for views.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

/// The files write bytes as characters: printable ones of Latin 1 as they are, the others as the
/// characters from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool is_printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      const char32_t code = is_printable ? byte : next++;
      std::string text;
      if (code >= 0x80) text += static_cast<char>(0xC0 | code >> 6);
      text += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3F) : code);
      bytes_.emplace(text, static_cast<char>(byte));
      characters_[byte] = std::move(text);
    }
  }

  /// The character that stands for a byte, in UTF-8.
  const std::string& character(unsigned char byte) const { return characters_[byte]; }

  /// The bytes that a token stands for; of one with other characters these themselves.
  std::string bytes_of(const std::string& token) const {
    std::string bytes;
    for (std::size_t at = 0; at < token.size();) {
      const std::size_t length = static_cast<unsigned char>(token[at]) < 0x80 ? 1 : 2;
      const auto found = bytes_.find(token.substr(at, length));
      if (found == bytes_.end()) return token;
      bytes += found->second;
      at += length;
    }
    return bytes;
  }

 private:
  std::array<std::string, 256> characters_;
  std::unordered_map<std::string, char> bytes_;
};

struct BytePairRules {
  struct Merge {
    std::int64_t rank = 0;
    std::int64_t token = 0;
  };
  /// Token that is found in a text before the text is cut.
  struct AddedToken {
    std::string content;
    std::int64_t number = 0;
    bool normalized = false;   // found in the normalized text, not in the text itself
    bool lstrip = false;       // takes the spaces before it along
    bool rstrip = false;       // takes the spaces behind it along
    bool single_word = false;  // not found within a word
  };
  /// One pre-tokenizer: it cuts each piece of the one before it.
  struct Cut {
    bool adds_prefix_space = false;
    TextPattern pattern = TextPattern::kNone;
  };

  /// Bytes of tokens by their numbers; empty: no token.
  std::vector<std::string> tokens;
  std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>> numbers;
  std::array<std::int64_t, 256> of_bytes = {};
  /// By merge_key().
  std::unordered_map<std::uint64_t, Merge> merges;
  std::vector<AddedToken> added;         // the longest first
  std::string first_of_added;            // the bytes that they begin with, each once
  std::vector<NormalForm> normal_forms;  // applied in this order
  std::vector<Cut> cuts;                 // applied in this order
  /// A piece that is a token is not merged.
  bool ignores_merges = false;

  static std::uint64_t merge_key(std::int64_t left, std::int64_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }
};

/// Appends the tokens of a piece.
void append_tokens(const BytePairRules& rules, std::string_view piece,
                   std::vector<std::int64_t>& tokens);

}  // namespace tutti::internal
