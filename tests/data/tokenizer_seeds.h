// A small tokenizer.json: bytes have their own numbers, seven tokens follow.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::tokenizer_test {

/// Pairs of bytes in the order in which they are merged.
inline const std::vector<std::pair<std::string, std::string>>& seed_merges() {
  static const std::vector<std::pair<std::string, std::string>> merges = {
      {"t", "h"}, {"h", "e"}, {"th", "e"}, {" ", "the"}, {"e", "r"}, {"\xC3", "\xA9"}};
  return merges;
}

/// The number of the token that a merge makes; 261 is "<|end|>".
inline std::int64_t seed_token(std::size_t rank) {
  return 256 + static_cast<std::int64_t>(rank) + (rank == 5 ? 1 : 0);
}

/// Bytes as these files write them.
inline std::string in_alphabet(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    unsigned code = byte;
    if (byte <= 0x20) code = 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0) code = 0x121 + byte - 0x7F;
    if (byte == 0xAD) code = 0x143;
    if (code >= 0x80) text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3F) : code);
  }
  return text;
}

inline std::string tokenizer_seed() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.set(in_alphabet(std::string(1, static_cast<char>(byte))), byte);
  Json merges = Json::array();
  for (std::size_t rank = 0; rank < seed_merges().size(); ++rank) {
    const std::string left = in_alphabet(seed_merges()[rank].first);
    const std::string right = in_alphabet(seed_merges()[rank].second);
    vocabulary.set(left + right, seed_token(rank));
    merges.push_back(left + " " + right);
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":261,)"
         R"("content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,)"
         R"("normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":)"
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},)"
         R"("post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE",)"
         R"("dropout":null,"unk_token":null,"continuing_subword_prefix":"",)"
         R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,)"
         R"("ignore_merges":false,"vocab":)" +
         vocabulary.dump() + R"(,"merges":)" + merges.dump() + "}}";
}

}  // namespace tutti::tokenizer_test
