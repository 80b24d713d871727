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

#include "tutti/data/text_pieces.h"

namespace tutti::internal {

/// Lets maps of strings be asked for views.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

struct BytePairRules {
  struct Merge {
    std::int64_t rank = 0;
    std::int64_t token = 0;
  };
  /// Tokens that are found in texts before these are cut.
  struct AddedToken {
    std::string content;
    std::int64_t number = 0;
    bool normalized = false;
  };

  /// Bytes of tokens by their numbers; empty: no token.
  std::vector<std::string> tokens;
  std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>> numbers;
  std::array<std::int64_t, 256> of_bytes = {};
  /// By merge_key().
  std::unordered_map<std::uint64_t, Merge> merges;
  std::vector<AddedToken> added;  // the longest first
  std::string first_of_added;     // the bytes that they begin with, each once
  TextPattern pattern = TextPattern::kGpt2;
  bool adds_prefix_space = false;
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
