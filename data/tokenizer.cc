// Texts as numbers of a vocabulary, and back.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tokenizer.h"

#include <functional>
#include <queue>
#include <utility>

#include "data/tokenizer_rules.h"
#include "tutti/core/error.h"

namespace tutti {
namespace internal {
namespace {

/// The tokens of a piece, of which neighbours are merged: the pair of the lowest rank first, the
/// leftmost of several. A list in an array, since merges leave gaps.
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
    std::size_t previous = 0;  // of the first: SIZE_MAX
    std::size_t next = 0;      // of the last: parts_.size()
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
    // One of the two may have been merged with another neighbour since.
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

}  // namespace

void append_tokens(const BytePairRules& rules, std::string_view piece,
                   std::vector<std::int64_t>& tokens) {
  if (rules.ignores_merges) {
    if (const auto found = rules.numbers.find(piece); found != rules.numbers.end()) {
      tokens.push_back(found->second);
      return;
    }
  }
  MergingPiece(rules, piece).append_to(tokens);
}

namespace {

/// Encodes one text. Pieces that come again are looked up in what was encoded before.
class TextEncoder {
 public:
  explicit TextEncoder(const BytePairRules& rules) : rules_(rules) {}

  std::vector<std::int64_t> encode(std::string_view text) {
    append_around_added(text, false);
    return std::move(tokens_);
  }

 private:
  /// The longest added token that the text begins with.
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

  /// Appends a text and the added tokens in it. Added tokens of the text itself come first; those
  /// of the normalized text are searched for in what is left between them.
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

  /// Appends a text that the cuts from number `cut` on cut into pieces.
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
  /// Where in them the tokens of a piece are.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, StringHash, std::equal_to<>>
      places_;
};

}  // namespace
}  // namespace internal

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
      fail(ErrorCode::kOutOfRange, "BytePairTokenizer::decode: expected numbers of tokens, 0 to ",
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
       "' is not a token of this vocabulary of ", vocabulary_size());
}

}  // namespace tutti
