// Tokenizers as files: Hugging Face's tokenizer.json, GPT-2's vocab.json and merges.txt.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>

#include "data/input_file.h"
#include "data/tokenizer_rules.h"
#include "tutti/core/error.h"
#include "tutti/core/json_values.h"
#include "tutti/core/logging.h"
#include "tutti/data/tokenizer.h"

namespace tutti {
namespace {

using internal::ByteAlphabet;
using internal::BytePairRules;
using internal::TextPattern;

/// More tokens are taken for a damaged file, before there is memory for them.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;

/// Puts rules together from the parts of files, as these write them.
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

  /// After the vocabulary, in the order in which they were learnt.
  void add_merge(const std::string& left, const std::string& right) {
    const BytePairRules::Merge merge{static_cast<std::int64_t>(num_merges_++),
                                     number_of(left + right)};
    rules_->merges[BytePairRules::merge_key(number_of(left), number_of(right))] = merge;
  }

  /// "left right", as files write merges. `where`: "merges.txt:12".
  void add_written_merge(std::string_view pair, const std::string& where) {
    const std::size_t space = pair.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == pair.size() ||
        pair.find(' ', space + 1) != std::string_view::npos) {
      invalid(where, ": expected two tokens with a space between them, got '", pair, "'");
    }
    add_merge(std::string(pair.substr(0, space)), std::string(pair.substr(space + 1)));
  }

  /// Adds a token that is found in texts before they are cut. Requires: normal forms are known.
  void add_token(BytePairRules::AddedToken token) {
    if (token.content.empty()) return;
    set_token(token.number, token.content);
    if (token.normalized) {
      for (const internal::NormalForm form : rules_->normal_forms)
        token.content = internal::normalized(token.content, form);
    }
    if (rules_->first_of_added.find(token.content[0]) == std::string::npos)
      rules_->first_of_added += token.content[0];
    rules_->added.push_back(std::move(token));
  }
  /// Adds a special token of the vocabulary.
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
      invalid("expected numbers of tokens from 0 to ", kMostTokens - 1, ", got ", number);
    const auto place = static_cast<std::size_t>(number);
    if (place >= rules_->tokens.size()) rules_->tokens.resize(place + 1);
    rules_->tokens[place] = std::move(bytes);
  }

  std::int64_t number_of(const std::string& token) const {
    const auto found = numbers_.find(token);
    if (found != numbers_.end()) return found->second;
    invalid("'", token, "' is not in the vocabulary; expected merges and special tokens of it");
  }

  std::string source_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string, std::int64_t> numbers_;  // by what the file writes
  std::size_t num_merges_ = 0;
  std::shared_ptr<BytePairRules> rules_ = std::make_shared<BytePairRules>();
};

// tokenizer.json.

/// Returns true if a member exists and is not null, false, 0 or an empty text.
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
  // Old files of this model do not say it.
  const bool is_old = type == "BPE" && !json.find("type");
  if (!is_old && json.at("type").as_string() != type) {
    reader.unimplemented(part, ": expected ", type, ", got ", json.at("type").as_string(),
                         "; byte-level byte pairs alone are read");
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

/// Members of a Sequence, or the one part itself; none where there is no part.
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

/// The cut that a pre-tokenizer makes. Throws kUnimplemented naming one of another kind.
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
    // The patterns match all characters of a text, so that what does not match is empty.
    const bool inverted = flag(step, "invert", false);
    if (step.at("behavior") == Json(inverted ? "Removed" : "Isolated"))
      return {false, internal::text_pattern_of(step.at("pattern").at("Regex").as_string())};
  }
  reader.unimplemented(
      "pre_tokenizer: expected ByteLevel, Digits, or Split by a regular expression with the "
      "behavior Isolated (or Removed and invert), got ",
      step.dump());
}

void read_pre_tokenizer(RulesReader& reader, const Json& file) {
  const std::vector<Json> steps = parts_of(file, "pre_tokenizer", "pretokenizers");
  if (steps.empty() || steps.back().at("type") != Json("ByteLevel")) {
    reader.unimplemented("pre_tokenizer: expected ByteLevel, alone or as the last one, got ",
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

/// Errors of members say which file they are in.
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
