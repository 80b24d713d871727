// Byte pairs, learnt from a text.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "data/tokenizer_rules.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/data/tokenizer.h"

namespace tutti {
namespace {

/// Words of a text as tokens, whose most frequent neighbours become one again and again.
class PairLearner {
 public:
  using Pair = std::pair<std::int64_t, std::int64_t>;

  PairLearner(std::string_view text, const std::array<std::int64_t, 256>& of_bytes) {
    std::map<std::string_view, std::int64_t> counts;
    while (!text.empty()) {
      const std::size_t length = internal::piece_length(text, internal::TextPattern::kGpt2);
      ++counts[text.substr(0, length)];
      text.remove_prefix(length);
    }
    for (const auto& [piece, count] : counts) {
      Word word{.count = count};
      for (const char byte : piece)
        word.tokens.push_back(of_bytes[static_cast<unsigned char>(byte)]);
      words_.push_back(std::move(word));
    }
    for (std::size_t i = 0; i < words_.size(); ++i) count_pairs_of(i, 1);
    for (const auto& [pair, places] : pairs_) candidates_.push({places.count, pair});
  }

  /// The pair that comes most often, twice at least; nothing when there is none.
  std::optional<Pair> most_frequent() {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      const std::int64_t count = pairs_[best.pair].count;
      if (count < 2) continue;
      if (count == best.count) return best.pair;
      candidates_.push({count, best.pair});  // it has become rarer since
    }
    return std::nullopt;
  }

  /// Makes each such pair `token`.
  void merge(const Pair& pair, std::int64_t token) {
    const std::set<std::size_t> words = std::exchange(pairs_[pair].words, {});
    std::set<Pair> made;
    for (const std::size_t number : words) {
      count_pairs_of(number, -1);
      std::vector<std::int64_t>& tokens = words_[number].tokens;
      std::vector<std::int64_t> merged;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool is_pair = i + 1 < tokens.size() && Pair(tokens[i], tokens[i + 1]) == pair;
        merged.push_back(is_pair ? token : tokens[i]);
        i += is_pair ? 1 : 0;
      }
      tokens = std::move(merged);
      count_pairs_of(number, 1);
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
        if (tokens[i] == token || tokens[i + 1] == token) made.emplace(tokens[i], tokens[i + 1]);
    }
    for (const Pair& each : made) candidates_.push({pairs_[each].count, each});
  }

 private:
  struct Word {
    std::vector<std::int64_t> tokens = {};
    std::int64_t count = 0;
  };
  struct Places {
    std::int64_t count = 0;
    std::set<std::size_t> words;  // that have it, or had it
  };
  struct Candidate {
    std::int64_t count = 0;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  /// Adds the pairs of a word, or (-1) takes them away.
  void count_pairs_of(std::size_t number, std::int64_t sign) {
    const Word& word = words_[number];
    for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Places& places = pairs_[{word.tokens[i], word.tokens[i + 1]}];
      places.count += sign * word.count;
      if (sign > 0) places.words.insert(number);
    }
  }

  std::vector<Word> words_;
  std::map<Pair, Places> pairs_;
  std::priority_queue<Candidate> candidates_;
};

/// What the file writes: characters, in the order of their numbers.
struct WrittenVocabulary {
  std::vector<std::string> tokens;
  Json::Array merges;
};

/// Bytes in the order of their characters, as the trainer of `tokenizers` numbers them.
std::array<std::int64_t, 256> add_bytes(const internal::ByteAlphabet& alphabet,
                                        WrittenVocabulary& vocabulary) {
  std::array<unsigned char, 256> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
  // UTF-8 sorts as the code points do.
  std::ranges::sort(bytes, {}, [&](unsigned char byte) { return alphabet.character(byte); });
  std::array<std::int64_t, 256> numbers{};
  for (const unsigned char byte : bytes) {
    numbers[byte] = static_cast<std::int64_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(alphabet.character(byte));
  }
  return numbers;
}

Json file_of(const WrittenVocabulary& vocabulary, const std::vector<std::string>& special_tokens) {
  const auto byte_level = [] {
    Json json = Json::object();
    json.set("type", "ByteLevel").set("add_prefix_space", false);
    return json.set("trim_offsets", true).set("use_regex", true);
  };
  Json numbers = Json::object(), added = Json::array();
  std::int64_t number = 0;
  for (const std::string& token : vocabulary.tokens) numbers.append(token, number++);
  number = 0;
  for (const std::string& token : special_tokens) {
    Json json = Json::object();
    json.set("id", number++).set("content", token).set("single_word", false);
    json.set("lstrip", false).set("rstrip", false).set("normalized", false).set("special", true);
    added.push_back(json);
  }
  Json model = Json::object();
  model.set("type", "BPE").set("dropout", nullptr).set("unk_token", nullptr);
  model.set("continuing_subword_prefix", nullptr).set("end_of_word_suffix", nullptr);
  model.set("fuse_unk", false).set("byte_fallback", false).set("ignore_merges", false);
  model.set("vocab", numbers).set("merges", vocabulary.merges);
  Json file = Json::object();
  file.set("version", "1.0").set("truncation", nullptr).set("padding", nullptr);
  file.set("added_tokens", added).set("normalizer", nullptr);
  file.set("pre_tokenizer", byte_level()).set("post_processor", nullptr);
  return file.set("decoder", byte_level()).set("model", model);
}

}  // namespace

std::string train_tokenizer(std::string_view text, std::int64_t vocabulary_size,
                            const std::vector<std::string>& special_tokens) {
  const auto least = static_cast<std::int64_t>(special_tokens.size()) + 256;
  if (vocabulary_size < least) {
    fail(ErrorCode::kInvalidArgument, "train_tokenizer: expected a vocabulary of at least ", least,
         " tokens, one for each byte and the special ones, got ", vocabulary_size);
  }
  WrittenVocabulary vocabulary{.tokens = special_tokens, .merges = {}};
  const internal::ByteAlphabet alphabet;
  PairLearner learner(text, add_bytes(alphabet, vocabulary));
  std::map<std::string, std::int64_t> numbers;
  for (const std::string& token : vocabulary.tokens)
    numbers.emplace(token, static_cast<std::int64_t>(numbers.size()));
  while (static_cast<std::int64_t>(vocabulary.tokens.size()) < vocabulary_size) {
    const auto pair = learner.most_frequent();
    if (!pair) break;
    const std::string left = vocabulary.tokens[static_cast<std::size_t>(pair->first)];
    const std::string right = vocabulary.tokens[static_cast<std::size_t>(pair->second)];
    vocabulary.merges.push_back(Json::Array{left, right});
    // Two pairs may make the same token: "a" "bc" and "ab" "c".
    const auto [made, is_new] =
        numbers.emplace(left + right, static_cast<std::int64_t>(vocabulary.tokens.size()));
    if (is_new) vocabulary.tokens.push_back(made->first);
    learner.merge(*pair, made->second);
  }
  return file_of(vocabulary, special_tokens).dump(1);
}

}  // namespace tutti
