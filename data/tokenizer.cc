// Byte-pair tokenizers: encoding, decoding, training and files.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/names.h"
#include "data/input_file.h"
#include "data/text_pieces.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/json_values.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

/// Hash for maps of strings in which string_views are looked up.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

/// Byte-to-character mapping used in tokenizer files: printable bytes of Latin 1 map to themselves,
/// all other bytes to characters from U+0100.
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

  /// Returns the character that represents a byte in tokens, in UTF-8.
  const std::string& character(unsigned char byte) const { return characters_[byte]; }

  /// Returns the bytes of a token. A token with characters outside the alphabet is returned
  /// unchanged.
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
  /// Token that is found in a text before the text is split.
  struct AddedToken {
    std::string content;
    std::int64_t number = 0;
    bool normalized = false;   // true to search the normalized text
    bool lstrip = false;       // absorbs the spaces before the token
    bool rstrip = false;       // absorbs the spaces after the token
    bool single_word = false;  // does not match within a word
  };
  /// Pre-tokenizer that splits each piece produced by the previous pre-tokenizer.
  struct Cut {
    bool adds_prefix_space = false;
    TextPattern pattern = TextPattern::kNone;
  };

  /// Bytes of each token, by token number; empty if there is no token with this number.
  std::vector<std::string> tokens;
  std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>> numbers;
  std::array<std::int64_t, 256> of_bytes = {};
  /// Merges, keyed by merge_key().
  std::unordered_map<std::uint64_t, Merge> merges;
  std::vector<AddedToken> added;         // longest token first
  std::string first_of_added;            // distinct first bytes of added tokens
  std::vector<NormalForm> normal_forms;  // applied in this order
  std::vector<Cut> cuts;                 // applied in this order
  /// True if a piece that the vocabulary contains becomes one token without merging.
  bool ignores_merges = false;
  /// Token numbers of the added tokens that are not in the vocabulary.
  std::unordered_set<std::int64_t> outside_vocabulary;

  static std::uint64_t merge_key(std::int64_t left, std::int64_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }
};

namespace {

/// Tokens of a piece, in which adjacent tokens are merged: the pair with the lowest rank first, and
/// among pairs of equal rank the leftmost. A linked list in an array, because merges leave gaps.
class MergingPiece {
 public:
  MergingPiece(const BytePairRules& rules, std::string_view piece) : rules_(rules) {
    for (std::size_t i = 0; i < piece.size(); ++i)
      parts_.push_back({rules.of_bytes[static_cast<unsigned char>(piece[i])], i - 1, i + 1});
    for (std::size_t i = 0; i + 1 < parts_.size(); ++i) note_pair(i);
  }

  void append_to(std::vector<std::int64_t>& tokens) {
    while (!pairs_.empty()) {
      const Pair pair = pairs_.top();
      pairs_.pop();
      merge(pair);
    }
    for (std::size_t i = 0; i < parts_.size(); i = parts_[i].next)
      tokens.push_back(parts_[i].token);
  }

 private:
  struct Part {
    std::int64_t token = 0;
    std::size_t previous = 0;  // index of the previous part; SIZE_MAX in the first part
    std::size_t next = 0;      // index of the next part; parts_.size() in the last part
    bool is_gone = false;
  };
  struct Pair {
    std::int64_t rank = 0;
    std::size_t left = 0;
    std::int64_t token = 0;
    bool operator>(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  const BytePairRules::Merge* merge_at(std::size_t left) const {
    const std::size_t right = parts_[left].next;
    if (right == parts_.size()) return nullptr;
    const auto found =
        rules_.merges.find(BytePairRules::merge_key(parts_[left].token, parts_[right].token));
    return found == rules_.merges.end() ? nullptr : &found->second;
  }

  void note_pair(std::size_t left) {
    if (const auto* found = merge_at(left)) pairs_.push({found->rank, left, found->token});
  }

  void merge(const Pair& pair) {
    Part& left = parts_[pair.left];
    // In the meantime, one token of the pair may have been merged with its other neighbour.
    const auto* const found = left.is_gone ? nullptr : merge_at(pair.left);
    if (!found || found->token != pair.token) return;
    Part& right = parts_[left.next];
    left.token = pair.token;
    left.next = right.next;
    right.is_gone = true;
    if (left.next < parts_.size()) parts_[left.next].previous = pair.left;
    if (left.previous != SIZE_MAX) note_pair(left.previous);
    note_pair(pair.left);
  }

  const BytePairRules& rules_;
  std::vector<Part> parts_;
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs_;
};

/// Appends the tokens of a piece.
void append_tokens(const BytePairRules& rules, std::string_view piece,
                   std::vector<std::int64_t>& tokens) {
  if (rules.ignores_merges) {
    const auto found = rules.numbers.find(piece);
    if (found != rules.numbers.end() && !rules.outside_vocabulary.contains(found->second)) {
      tokens.push_back(found->second);
      return;
    }
  }
  MergingPiece(rules, piece).append_to(tokens);
}

/// Encoder for one text. Reuses the tokens of pieces that occur more than once.
class TextEncoder {
 public:
  explicit TextEncoder(const BytePairRules& rules) : rules_(rules) {}

  std::vector<std::int64_t> encode(std::string_view text) {
    append_around_added(text, false);
    return std::move(tokens_);
  }

 private:
  /// Returns the longest added token that the text begins with, or nullptr.
  const BytePairRules::AddedToken* added_at(std::string_view text, bool normalized) const {
    for (const auto& token : rules_.added)
      if (token.normalized == normalized && text.starts_with(token.content)) return &token;
    return nullptr;
  }

  static bool is_within_word(std::string_view text, std::size_t begin, std::size_t end) {
    const auto is_word = [](const Character& c) { return c.is_valid && is_word_character(c.code); };
    return (begin > 0 && is_word(character_before(text, begin))) ||
           (end < text.size() && is_word(character_at(text, end)));
  }

  /// Appends the tokens of a text. Added tokens that match the original text take precedence. The
  /// text between them is then searched for added tokens that match normalized text.
  void append_around_added(std::string_view text, bool normalized) {
    std::size_t begin = 0;
    const auto append_before = [&](std::size_t end) {
      if (end <= begin) return;
      const std::string_view part = text.substr(begin, end - begin);
      if (normalized) {
        append_pieces(part, 0);
      } else {
        append_normalized(part);
      }
    };
    for (std::size_t at = 0;;) {
      at = text.find_first_of(rules_.first_of_added, at);
      if (at == std::string_view::npos) break;
      const auto* const token = added_at(text.substr(at), normalized);
      if (!token) {
        ++at;
        continue;
      }
      std::size_t first = at, end = at += token->content.size();
      if (token->single_word && is_within_word(text, first, end)) continue;
      const auto is_space = [](const Character& c) { return c.kind == CharacterKind::kSpace; };
      while (token->lstrip && first > begin && is_space(character_before(text, first)))
        first -= character_before(text, first).length;
      while (token->rstrip && end < text.size() && is_space(character_at(text, end)))
        end += character_at(text, end).length;
      append_before(first);
      tokens_.push_back(token->number);
      begin = end;
    }
    append_before(text.size());
  }

  void append_normalized(std::string_view text) {
    if (rules_.normal_forms.empty()) return append_around_added(text, true);
    std::string changed(text);
    for (const NormalForm form : rules_.normal_forms) changed = normalized(changed, form);
    append_around_added(changed, true);
  }

  /// Appends `text`, split into pieces by rules_.cuts[cut] and all later cuts.
  void append_pieces(std::string_view text, std::size_t cut) {
    if (cut == rules_.cuts.size()) return append_piece(text);
    const auto& [adds_prefix_space, pattern] = rules_.cuts[cut];
    std::string with_space;
    if (adds_prefix_space && !text.starts_with(' ')) {
      with_space = concat(' ', text);
      text = with_space;
    }
    while (!text.empty()) {
      const std::size_t length = piece_length(text, pattern);
      append_pieces(text.substr(0, length), cut + 1);
      text.remove_prefix(length);
    }
  }

  void append_piece(std::string_view piece) {
    const auto known = places_.find(piece);
    if (known != places_.end()) {
      const auto [begin, end] = known->second;
      for (std::size_t i = begin; i < end; ++i) tokens_.push_back(tokens_[i]);
      return;
    }
    const std::size_t begin = tokens_.size();
    append_tokens(rules_, piece, tokens_);
    places_.emplace(piece, std::pair(begin, tokens_.size()));
  }

  const BytePairRules& rules_;
  std::vector<std::int64_t> tokens_;
  /// For each piece, the range of its tokens in tokens_.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, StringHash, std::equal_to<>>
      places_;
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {

BytePairTokenizer::BytePairTokenizer(std::shared_ptr<const internal::BytePairRules> rules)
    : rules_(std::move(rules)) {}

std::vector<std::int64_t> BytePairTokenizer::encode(std::string_view text) const {
  return internal::TextEncoder(*rules_).encode(text);
}

std::string BytePairTokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= vocabulary_size() ||
        rules_->tokens[static_cast<std::size_t>(token)].empty()) {
      fail(ErrorCode::kOutOfRange, "BytePairTokenizer::decode: expected token numbers from 0 to ",
           vocabulary_size() - 1, ", got ", token);
    }
    text += rules_->tokens[static_cast<std::size_t>(token)];
  }
  return text;
}

std::int64_t BytePairTokenizer::vocabulary_size() const {
  return static_cast<std::int64_t>(rules_->tokens.size());
}

std::int64_t BytePairTokenizer::number_of(std::string_view token) const {
  const auto found = rules_->numbers.find(token);
  if (found != rules_->numbers.end()) return found->second;
  fail(ErrorCode::kNotFound, "BytePairTokenizer::number_of: '", token,
       "' is not in the vocabulary; expected a token with a number from 0 to ",
       vocabulary_size() - 1);
}

// Training of byte-pair encodings.

namespace {

/// Trainer: represents words of a text as tokens and repeatedly merges the most frequent pair.
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

  /// Returns the most frequent pair, or nullopt if no pair occurs twice.
  std::optional<Pair> most_frequent() {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      const std::int64_t count = pairs_[best.pair].count;
      if (count < 2) continue;
      if (count == best.count) return best.pair;
      candidates_.push({count, best.pair});  // earlier merges have made the pair rarer
    }
    return std::nullopt;
  }

  /// Replaces every occurrence of `pair` with `token`.
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
    std::set<std::size_t> words;  // words that contain, or contained, the pair
  };
  struct Candidate {
    std::int64_t count = 0;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  /// Adds the pairs of a word to the counts (sign 1) or subtracts them (sign -1).
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

/// Vocabulary and merges in the form in which a file stores them: tokens as characters, in the
/// order of token numbers.
struct WrittenVocabulary {
  std::vector<std::string> tokens;
  Json::Array merges;
};

/// Adds one token for each byte, sorted by the characters that represent the bytes, as the trainer
/// of `tokenizers` does.
std::array<std::int64_t, 256> add_bytes(const internal::ByteAlphabet& alphabet,
                                        WrittenVocabulary& vocabulary) {
  std::array<unsigned char, 256> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
  // UTF-8 strings sort in the same order as their code points.
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
  internal::require(vocabulary_size >= least, "train_tokenizer: expected a vocabulary of at least ",
                    least, " tokens, one for each byte and the special ones, got ",
                    vocabulary_size);
  WrittenVocabulary vocabulary{.tokens = special_tokens, .merges = {}};
  const internal::ByteAlphabet alphabet;
  PairLearner learner(text, add_bytes(alphabet, vocabulary));
  std::map<std::string, std::int64_t> numbers;
  for (const std::string& token : vocabulary.tokens) {
    const bool is_new = numbers.emplace(token, static_cast<std::int64_t>(numbers.size())).second;
    internal::require(is_new, "train_tokenizer: the special token '", token,
                      "' is given twice, or is already the token of a byte; expected distinct "
                      "tokens, none of them a byte's token");
  }
  while (static_cast<std::int64_t>(vocabulary.tokens.size()) < vocabulary_size) {
    const auto pair = learner.most_frequent();
    if (!pair) break;
    const std::string left = vocabulary.tokens[static_cast<std::size_t>(pair->first)];
    const std::string right = vocabulary.tokens[static_cast<std::size_t>(pair->second)];
    vocabulary.merges.push_back(Json::Array{left, right});
    // Two pairs may merge into the same token: "a" "bc" and "ab" "c".
    const auto [made, is_new] =
        numbers.emplace(left + right, static_cast<std::int64_t>(vocabulary.tokens.size()));
    if (is_new) vocabulary.tokens.push_back(made->first);
    learner.merge(*pair, made->second);
  }
  return file_of(vocabulary, special_tokens).dump(1);
}

// Tokenizer files: Hugging Face's tokenizer.json, GPT-2's vocab.json and merges.txt.

namespace {

using internal::ByteAlphabet;
using internal::BytePairRules;
using internal::TextPattern;

/// Limit on token numbers. Larger numbers are rejected before memory is allocated.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;

/// Builder of rules from the entries of a tokenizer file.
class RulesReader {
 public:
  explicit RulesReader(const std::string& source) : source_(source) {}

  void add_vocabulary(const Json& vocabulary) {
    for (const auto& [token, number] : vocabulary.as_object()) {
      numbers_.emplace(token, number.as_int());
      set_token(number.as_int(), alphabet_.bytes_of(token));
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto found = numbers_.find(alphabet_.character(static_cast<unsigned char>(byte)));
      if (found == numbers_.end()) {
        invalid("expected a token for each byte, got none for byte ", byte,
                "; try a tokenizer that was trained with the initial alphabet of bytes");
      }
      rules_->of_bytes[byte] = found->second;
    }
  }

  /// Adds a merge. Must be called after add_vocabulary(), in the order in which merges were learnt.
  void add_merge(const std::string& left, const std::string& right) {
    const BytePairRules::Merge merge{static_cast<std::int64_t>(num_merges_++),
                                     number_of(left + right)};
    rules_->merges[BytePairRules::merge_key(number_of(left), number_of(right))] = merge;
  }

  /// Adds a merge written as "left right". `where` names it in errors: "merges[7]".
  void add_written_merge(std::string_view pair, const std::string& where) {
    const std::size_t space = pair.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == pair.size() ||
        pair.find(' ', space + 1) != std::string_view::npos) {
      invalid(where, ": expected two tokens with a space between them, got '", pair, "'");
    }
    add_merge(std::string(pair.substr(0, space)), std::string(pair.substr(space + 1)));
  }

  /// Adds a token that is matched in texts before they are split. Requires: the normal forms are
  /// already set.
  void add_token(BytePairRules::AddedToken token) {
    if (token.content.empty()) return;
    const auto place = static_cast<std::size_t>(token.number);
    if (place >= rules_->tokens.size() || rules_->tokens[place].empty())
      rules_->outside_vocabulary.insert(token.number);
    set_token(token.number, token.content);
    if (token.normalized) {
      for (const internal::NormalForm form : rules_->normal_forms)
        token.content = internal::normalized(token.content, form);
    }
    if (rules_->first_of_added.find(token.content[0]) == std::string::npos)
      rules_->first_of_added += token.content[0];
    rules_->added.push_back(std::move(token));
  }
  /// Adds a special token that is in the vocabulary.
  void add_special(const std::string& content) { add_token({content, number_of(content)}); }

  BytePairRules& rules() { return *rules_; }

  std::shared_ptr<const BytePairRules> done() {
    std::ranges::stable_sort(rules_->added, std::ranges::greater(),
                             [](const auto& token) { return token.content.size(); });
    for (std::size_t i = 0; i < rules_->tokens.size(); ++i)
      rules_->numbers.emplace(rules_->tokens[i], static_cast<std::int64_t>(i));
    rules_->numbers.erase("");
    return std::move(rules_);
  }

  template <class... Parts>
  [[noreturn]] void invalid(const Parts&... parts) const {
    fail(ErrorCode::kInvalidArgument, source_, ": ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void unimplemented(const Parts&... parts) const {
    fail(ErrorCode::kUnimplemented, source_, ": ", parts...);
  }

 private:
  void set_token(std::int64_t number, std::string bytes) {
    if (number < 0 || number >= kMostTokens)
      invalid("expected token numbers from 0 to ", kMostTokens - 1, ", got ", number);
    const auto place = static_cast<std::size_t>(number);
    if (place >= rules_->tokens.size()) rules_->tokens.resize(place + 1);
    rules_->tokens[place] = std::move(bytes);
  }

  std::int64_t number_of(const std::string& token) const {
    const auto found = numbers_.find(token);
    if (found != numbers_.end()) return found->second;
    invalid("'", token,
            "' is not in the vocabulary; expected a vocabulary with all merges and special tokens");
  }

  std::string source_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string, std::int64_t> numbers_;  // keyed by token text, as in the file
  std::size_t num_merges_ = 0;
  std::shared_ptr<BytePairRules> rules_ = std::make_shared<BytePairRules>();
};

// Parsing of tokenizer.json.

/// Returns true if the member exists and is not null, false, 0 or empty.
bool is_given(const Json& json, std::string_view name) {
  const Json* const member = json.find(name);
  return member && !member->is_null() && *member != Json(false) && *member != Json("") &&
         *member != Json(0.0) && *member != Json(0);
}

bool flag(const Json& json, std::string_view name, bool otherwise) {
  const Json* const member = json.find(name);
  return member && !member->is_null() ? member->as_bool() : otherwise;
}

const Json& expect_type(const RulesReader& reader, const Json& file, const char* part,
                        std::string_view type) {
  static const Json kNone = Json::object().set("type", "null");
  const Json& json = is_given(file, part) ? file.at(part) : kNone;
  // Old files of BPE models have no type.
  const bool is_old = type == "BPE" && !json.find("type");
  if (!is_old && json.at("type").as_string() != type) {
    reader.unimplemented(part, ": expected ", type, ", got ", json.at("type").as_string(),
                         "; only byte-level byte-pair tokenizers are supported");
  }
  return json;
}

void read_model(RulesReader& reader, const Json& file) {
  const Json& model = expect_type(reader, file, "model", "BPE");
  for (const char* option :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    if (is_given(model, option))
      reader.unimplemented("model: expected no ", option, ", got ", model.at(option).dump());
  reader.add_vocabulary(model.at("vocab"));
  const Json::Array& merges = model.at("merges").as_array();
  for (std::size_t i = 0; i < merges.size(); ++i) {
    if (merges[i].is_string()) {
      reader.add_written_merge(merges[i].as_string(), concat("merges[", i, "]"));
    } else {
      const auto pair = value_of<std::pair<std::string, std::string>>(merges[i]);
      reader.add_merge(pair.first, pair.second);
    }
  }
  reader.rules().ignores_merges = flag(model, "ignore_merges", false);
}

/// Returns the members of `part` if it is a Sequence, else `part` alone; empty if the file has no
/// such part.
std::vector<Json> parts_of(const Json& file, std::string_view part, std::string_view members) {
  if (!is_given(file, part)) return {};
  const Json& json = file.at(part);
  if (json.at("type") != Json("Sequence")) return {json};
  const Json::Array& array = json.at(members).as_array();
  return {array.begin(), array.end()};
}

void read_normalizer(RulesReader& reader, const Json& file) {
  using internal::NormalForm;
  static const std::map<std::string, NormalForm> kForms = {{"NFC", NormalForm::kNfc},
                                                           {"NFD", NormalForm::kNfd},
                                                           {"NFKC", NormalForm::kNfkc},
                                                           {"NFKD", NormalForm::kNfkd}};
  for (const Json& step : parts_of(file, "normalizer", "normalizers")) {
    const auto form = kForms.find(step.at("type").as_string());
    if (form == kForms.end())
      reader.unimplemented("normalizer: expected NFC, NFD, NFKC or NFKD, got ", step.dump());
    reader.rules().normal_forms.push_back(form->second);
  }
}

/// Returns the Cut for a pre-tokenizer. Throws kUnimplemented, naming the pre-tokenizer, if tutti
/// does not support it.
BytePairRules::Cut cut_of(const RulesReader& reader, const Json& step) {
  const std::string& type = step.at("type").as_string();
  if (type == "ByteLevel") {
    return {flag(step, "add_prefix_space", true),
            flag(step, "use_regex", true) ? TextPattern::kGpt2 : TextPattern::kNone};
  }
  if (type == "Digits") {
    return {false, flag(step, "individual_digits", false) ? TextPattern::kDigits
                                                          : TextPattern::kDigitRuns};
  }
  if (type == "Split" && step.at("pattern").find("Regex")) {
    // The patterns match every character of a text, so no text is left between matches.
    const bool inverted = flag(step, "invert", false);
    if (step.at("behavior") == Json(inverted ? "Removed" : "Isolated"))
      return {false, internal::text_pattern_of(step.at("pattern").at("Regex").as_string())};
  }
  reader.unimplemented(
      "pre_tokenizer: expected ByteLevel, Digits, or Split by a regular expression with the "
      "behavior Isolated (or Removed with invert), got ",
      step.dump());
}

void read_pre_tokenizer(RulesReader& reader, const Json& file) {
  const std::vector<Json> steps = parts_of(file, "pre_tokenizer", "pretokenizers");
  if (steps.empty() || steps.back().at("type") != Json("ByteLevel")) {
    reader.unimplemented("pre_tokenizer: expected ByteLevel, alone or as the last step, got ",
                         steps.empty() ? "none" : file.at("pre_tokenizer").dump());
  }
  for (const Json& step : steps) reader.rules().cuts.push_back(cut_of(reader, step));
}

void read_added_tokens(RulesReader& reader, const Json& file) {
  const Json* const tokens = file.find("added_tokens");
  if (!tokens || tokens->is_null()) return;
  for (const Json& token : tokens->as_array()) {
    reader.add_token({token.at("content").as_string(), token.at("id").as_int(),
                      flag(token, "normalized", false), flag(token, "lstrip", false),
                      flag(token, "rstrip", false), flag(token, "single_word", false)});
  }
}

/// Calls `read`; if an error does not name `source`, prefixes the error with `source`.
template <class Read>
BytePairTokenizer read_named(const std::string& source, const Read& read) {
  RulesReader reader(source);
  try {
    read(reader);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(source) != std::string_view::npos) throw;
    throw error.with_context(source);
  }
  return BytePairTokenizer(reader.done());
}

}  // namespace

BytePairTokenizer parse_tokenizer(std::string_view json, const std::string& source) {
  return read_named(source, [&](RulesReader& reader) {
    const Json file = Json::parse(json, source);
    for (const char* part : {"truncation", "padding"}) {
      if (is_given(file, part)) {
        log_warning_once(concat(source, ": encode() does not apply the ", part, " of the file, ",
                                file.at(part).dump(),
                                "; shorten token lists before Dataset::padded_batch() pads them"));
      }
    }
    expect_type(reader, file, "decoder", "ByteLevel");
    read_model(reader, file);
    read_normalizer(reader, file);
    read_pre_tokenizer(reader, file);
    read_added_tokens(reader, file);
  });
}

BytePairTokenizer parse_gpt2_tokenizer(std::string_view vocabulary, std::string_view merges,
                                       const std::string& source,
                                       const std::vector<std::string>& special_tokens) {
  return read_named(source, [&](RulesReader& reader) {
    reader.add_vocabulary(Json::parse(vocabulary, source));
    reader.rules().cuts.push_back({false, TextPattern::kGpt2});
    for (std::size_t line = 1; !merges.empty(); ++line) {
      const std::size_t end = std::min(merges.find('\n'), merges.size());
      std::string_view pair = merges.substr(0, end);
      merges.remove_prefix(std::min(end + 1, merges.size()));
      if (pair.ends_with('\r')) pair.remove_suffix(1);
      if (pair.empty() || pair.starts_with("#version")) continue;
      reader.add_written_merge(pair, concat("merges, line ", line));
    }
    for (const std::string& token : special_tokens) reader.add_special(token);
  });
}

BytePairTokenizer read_tokenizer(const std::string& path) {
  return parse_tokenizer(internal::read_file_for("read_tokenizer", path), path);
}

BytePairTokenizer read_gpt2_tokenizer(const std::string& vocabulary_path,
                                      const std::string& merges_path,
                                      const std::vector<std::string>& special_tokens) {
  constexpr const char* kReader = "read_gpt2_tokenizer";
  return parse_gpt2_tokenizer(internal::read_file_for(kReader, vocabulary_path),
                              internal::read_file_for(kReader, merges_path),
                              concat(vocabulary_path, ", ", merges_path), special_tokens);
}

}  // namespace tutti
