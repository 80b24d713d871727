// Compares byte-pair tokenizers with slow reference implementations; tests errors for damaged or
// unsupported tokenizer files.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tokenizer.h"

#include <algorithm>
#include <map>
#include <regex>
#include <utility>

#include "data/text_pieces.h"
#include "tests/data/dataset_values.h"
#include "tests/support/warnings.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"

namespace tutti::testing::tokenizer_test {
using internal::TextPattern;

/// Returns pairs of byte strings in merge order.
const std::vector<std::pair<std::string, std::string>>& seed_merges() {
  static const std::vector<std::pair<std::string, std::string>> merges = {
      {"t", "h"}, {"h", "e"}, {"th", "e"}, {" ", "the"}, {"e", "r"}, {"\xC3", "\xA9"}};
  return merges;
}

/// Returns the token number that results from merge `rank`. Number 261 is reserved for "<|end|>".
std::int64_t seed_token(std::size_t rank) {
  return 256 + static_cast<std::int64_t>(rank) + (rank == 5 ? 1 : 0);
}

/// Encodes bytes in the printable alphabet of tokenizer files.
std::string in_alphabet(const std::string& bytes) {
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

std::string tokenizer_seed() {
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

/// Splits ASCII texts with std::regex.
std::vector<std::string> regex_pieces(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> pieces;
  for (std::sregex_iterator piece(text.begin(), text.end(), pattern), end; piece != end; ++piece)
    pieces.push_back(piece->str());
  return pieces;
}

std::vector<std::string> pieces_of(std::string_view text, TextPattern pattern) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, internal::piece_length(text, pattern)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

/// Returns random text composed of fragments that the patterns treat differently.
std::string random_text(std::uint64_t number, std::uint64_t most_parts = 12) {
  static const std::vector<std::string> parts = {" ",  " ",   "\n",  "\r", "\t", "a",
                                                 "to", "the", "S",   "7",  "42", "'",
                                                 "'s", "'LL", "'re", "!",  "-",  "."};
  std::string text;
  const RandomStream stream({.seed = number});
  for (std::uint64_t i = 0, count = stream.below(0, most_parts); i < count; ++i)
    text += parts[stream.below(i + 1, parts.size())];
  return text;
}

TEST(PreTokenizer, SplitsLikeReferenceRegularExpressions) {
  const std::regex gpt2(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+)");
  const std::regex llama3(
      R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3})"
      R"(| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  for (std::uint64_t number = 0; number < 400; ++number) {
    const std::string text = random_text(number);
    EXPECT_EQ(pieces_of(text, TextPattern::kGpt2), regex_pieces(text, gpt2)) << text;
    EXPECT_EQ(pieces_of(text, TextPattern::kLlama3), regex_pieces(text, llama3)) << text;
  }
  EXPECT_THAT(pieces_of("1234", TextPattern::kLlama3), ElementsAre("123", "4"));
  EXPECT_THAT(pieces_of("12", TextPattern::kQwen2), ElementsAre("1", "2"));
}

TEST(PreTokenizer, ClassifiesUnicodeCharactersAndSplitsDigits) {
  // Greek letters, an Arabic digit, a Roman numeral, an ideographic space and an emoji.
  EXPECT_THAT(pieces_of("λόγος٣Ⅷ\u3000\u3000!🙂 я", TextPattern::kGpt2),
              ElementsAre("λόγος", "٣Ⅷ", "\u3000", "\u3000", "!🙂", " я"));
  EXPECT_THAT(pieces_of("x\xFF\xC3 \xE2\x82y", TextPattern::kGpt2),
              ElementsAre("x", "\xFF\xC3", " \xE2\x82", "y"));
  EXPECT_EQ(internal::kind_of(U'ª'), internal::CharacterKind::kLetter);
  EXPECT_EQ(internal::kind_of(U'²'), internal::CharacterKind::kNumber);
  EXPECT_EQ(internal::kind_of(0x85), internal::CharacterKind::kSpace);
  EXPECT_EQ(internal::kind_of(0x10FFFF), internal::CharacterKind::kOther);
  EXPECT_THAT(pieces_of("ab12 3", TextPattern::kDigits), ElementsAre("ab", "1", "2", " ", "3"));
  EXPECT_THAT(pieces_of("ab12 3", TextPattern::kDigitRuns), ElementsAre("ab", "12", " ", "3"));
  EXPECT_THAT(pieces_of("²Ⅷ\xFF", TextPattern::kDigits), ElementsAre("²", "Ⅷ", "\xFF"));
}

TEST(UnicodeNormalization, MatchesStandardExamples) {
  using internal::NormalForm, internal::normalized;
  // Examples from Unicode Standard Annex 15, figures 3 and 6.
  EXPECT_EQ(normalized("\u212B", NormalForm::kNfc), "\u00C5");
  EXPECT_EQ(normalized("\u212B", NormalForm::kNfd), "A\u030A");
  EXPECT_EQ(normalized("\uFB01", NormalForm::kNfc), "\uFB01");
  EXPECT_EQ(normalized("\uFB01", NormalForm::kNfkc), "fi");
  EXPECT_EQ(normalized("2\u2075", NormalForm::kNfkd), "25");
  EXPECT_EQ(normalized("\u1E9B\u0323", NormalForm::kNfkc), "\u1E69");
  EXPECT_EQ(normalized("\xFF"
                       "e\u0301\xC3",
                       NormalForm::kNfc),
            "\xFF\u00E9\xC3");
  EXPECT_EQ(normalized("", NormalForm::kNfc), "");
}

TEST(PreTokenizer, ErrorNamesUnsupportedRegularExpression) {
  EXPECT_ERROR(internal::text_pattern_of("\\w+"), kUnimplemented, "GPT-2, Llama 3 or Qwen 2",
               "got \\w+");
}

BytePairTokenizer small_tokenizer() { return parse_tokenizer(tokenizer_seed(), "f"); }

TEST(Tokenizer, MergesInRankOrder) {
  const BytePairTokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocabulary_size(), 263);
  // Tokens 0 to 255 are the bytes, followed by "th", "he", "the", " the", "er", "<|end|>", and "é",
  // whose two bytes are merged.
  EXPECT_THAT(tokenizer.encode("the"), ElementsAre(258));
  EXPECT_THAT(tokenizer.encode("he the"), ElementsAre(257, 259));
  EXPECT_THAT(tokenizer.encode("ther"), ElementsAre(258, 'r'));  // "the" precedes "er"
  EXPECT_THAT(tokenizer.encode("per"), ElementsAre('p', 260));
  EXPECT_THAT(tokenizer.encode("\xC3\xA9"), ElementsAre(262));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.number_of(" the"), 259);
}

TEST(Tokenizer, FindsSpecialTokensInTexts) {
  const BytePairTokenizer tokenizer = small_tokenizer();
  EXPECT_THAT(tokenizer.encode("the<|end|><|end|>he<|end"),
              ElementsAre(258, 261, 261, 257, '<', '|', 'e', 'n', 'd'));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{259, 261}), " the<|end|>");
  EXPECT_EQ(tokenizer.number_of("<|end|>"), 261);
}

/// Merges pairs as in the original byte-pair encoding: every round examines all pairs.
std::vector<std::int64_t> slowly_merged(const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = SIZE_MAX, at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      for (std::size_t rank = 0; rank < std::min(best, seed_merges().size()); ++rank) {
        const auto& [left, right] = seed_merges()[rank];
        if (left == parts[i] && right == parts[i + 1]) best = rank, at = i;
      }
    }
    if (best == SIZE_MAX) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<std::int64_t> tokens;
  for (const std::string& part : parts) {
    if (part.size() == 1) {
      tokens.push_back(static_cast<unsigned char>(part[0]));
      continue;
    }
    for (std::size_t rank = 0; rank < seed_merges().size(); ++rank)
      if (seed_merges()[rank].first + seed_merges()[rank].second == part)
        tokens.push_back(seed_token(rank));
  }
  return tokens;
}

TEST(Tokenizer, MatchesReferenceImplementationAndRoundTrips) {
  const BytePairTokenizer tokenizer = small_tokenizer();
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const std::string text =
        random_text(number, 40) + (number % 2 == 0 ? "theerhe the\xC3\xA9" : "");
    std::vector<std::int64_t> expected;
    for (const std::string& piece : pieces_of(text, TextPattern::kGpt2)) {
      const std::vector<std::int64_t> tokens = slowly_merged(piece);
      expected.insert(expected.end(), tokens.begin(), tokens.end());
    }
    ASSERT_EQ(tokenizer.encode(text), expected) << text;
    ASSERT_EQ(tokenizer.decode(expected), text);
  }
  std::string bytes;
  for (int i = 0; i < 512; ++i) bytes += static_cast<char>(i * 7);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
}

TEST(Tokenizer, MergesLongWordsCompletely) {
  const BytePairTokenizer tokenizer = small_tokenizer();
  std::string word;
  for (int i = 0; i < 100'000; ++i) word += "the";
  EXPECT_EQ(tokenizer.encode(word), std::vector<std::int64_t>(100'000, 258));
}

/// Returns the tokenizer seed file with `part` replaced by `by`.
std::string changed_seed(const std::string& part, const std::string& by,
                         std::string json = tokenizer_seed()) {
  const std::size_t at = json.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return json.replace(at, part.size(), by);
}

TEST(Tokenizer, AppliesOptionsFromFile) {
  const auto encode = [](const std::string& part, const std::string& by, const char* text) {
    return parse_tokenizer(changed_seed(part, by), "f").encode(text);
  };
  const std::string with_space = "\"add_prefix_space\":true";
  EXPECT_THAT(encode("\"add_prefix_space\":false", with_space, "the<|end|> the"),
              ElementsAre(259, 261, 259));
  EXPECT_THAT(encode("\"use_regex\":true", "\"use_regex\":false", "p\xC3\xA9 the"),
              ElementsAre('p', 262, 259));
  // A token that no merge produces is used only with ignore_merges, and only for a complete word.
  const std::string unmade = changed_seed(R"("th e",)", "");
  EXPECT_THAT(parse_tokenizer(unmade, "f").encode("the"), ElementsAre(256, 'e'));
  const std::string whole =
      changed_seed("\"ignore_merges\":false", "\"ignore_merges\":true", unmade);
  EXPECT_THAT(parse_tokenizer(whole, "f").encode("the thee"), ElementsAre(258, ' ', 256, 'e', 'e'));
  // An added token is not in the vocabulary; with single_word, it matches only between word
  // boundaries.
  const std::string added =
      changed_seed(R"("added_tokens":[)",
                   R"("added_tokens":[{"id":263,"content":"pq","single_word":true,"lstrip":false,)"
                   R"("rstrip":false,"normalized":true,"special":false},)",
                   whole);
  EXPECT_THAT(parse_tokenizer(added, "f").encode("pq \u24b6pq"),
              ElementsAre(263, ' ', 0xE2, 0x92, 0xB6, 'p', 'q'));
  EXPECT_THAT(encode(R"("th e")", R"(["th","e"])", "the"), ElementsAre(258));
  EXPECT_THAT(encode("\"dropout\":null", "\"dropout\":0.0", "the"), ElementsAre(258));
  EXPECT_THAT(
      encode(
          R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})",
          R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
          R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)"
          R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
          R"("behavior":"Isolated","invert":false},{"type":"ByteLevel",)"
          R"("add_prefix_space":false,"use_regex":false}]})",
          "the the\n\n"),
      ElementsAre(258, 259, '\n', '\n'));
}

constexpr const char* kNoNormalizer = "\"normalizer\":null";
constexpr const char* kByteLevel =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";

TEST(Tokenizer, AppliesNormalizerFromFile) {
  const auto encode = [](const std::string& normalizer, const char* text) {
    return parse_tokenizer(changed_seed(kNoNormalizer, "\"normalizer\":" + normalizer), "f")
        .encode(text);
  };
  const std::string nfc = R"({"type":"NFC"})", nfd = R"({"type":"NFD"})";
  EXPECT_THAT(small_tokenizer().encode("e\u0301"), ElementsAre('e', 0xCC, 0x81));
  EXPECT_THAT(encode(nfc, "e\u0301 the"), ElementsAre(262, 259));
  EXPECT_THAT(encode(nfd, "\u00E9"), ElementsAre('e', 0xCC, 0x81));
  EXPECT_THAT(encode(R"({"type":"Sequence","normalizers":[]})", "e\u0301"),
              ElementsAre('e', 0xCC, 0x81));
  const std::string both = R"({"type":"Sequence","normalizers":[)" + nfd + "," + nfc + "]}";
  EXPECT_THAT(encode(both, "e\u0301"), ElementsAre(262));
}

TEST(Tokenizer, FindsAddedTokensInNormalizedText) {
  // The token's text is in decomposed form, and the encoded text in composed form.
  std::string json = changed_seed(kNoNormalizer, R"("normalizer":{"type":"NFC"})");
  json = changed_seed(R"("content":"<|end|>")", "\"content\":\"e\u0301e\"", json);
  json = changed_seed("\"normalized\":false", "\"normalized\":true", json);
  EXPECT_THAT(parse_tokenizer(json, "f").encode("a\u00E9e"), ElementsAre('a', 261));
}

TEST(Tokenizer, StripsSpacesAroundAddedTokens) {
  const auto encode = [](const std::string& option, const char* text) {
    const std::string quoted = "\"" + option + "\":";
    return parse_tokenizer(changed_seed(quoted + "false", quoted + "true"), "f").encode(text);
  };
  EXPECT_THAT(encode("lstrip", "the \u3000<|end|> he"), ElementsAre(258, 261, ' ', 257));
  EXPECT_THAT(encode("lstrip", " <|end|> <|end|>"), ElementsAre(261, 261));
  EXPECT_THAT(encode("rstrip", "the <|end|> \the"), ElementsAre(258, ' ', 261, 257));
  EXPECT_THAT(encode("single_word", "a <|end|>."), ElementsAre('a', ' ', 261, '.'));
  EXPECT_EQ(encode("single_word", "a<|end|>").size(), 8u);
  EXPECT_EQ(encode("single_word", "<|end|>\u00E9").size(), 8u);
}

TEST(Tokenizer, AppliesPreTokenizersInOrder) {
  const auto encode = [](const std::string& steps, const char* text) {
    return parse_tokenizer(
               changed_seed(kByteLevel, R"({"type":"Sequence","pretokenizers":[)" + steps + "]}"),
               "f")
        .encode(text);
  };
  EXPECT_THAT(encode(kByteLevel, "the the"), ElementsAre(258, 259));
  // A space precedes each of the two pieces, "1" and "the".
  EXPECT_THAT(encode(R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel"})", "1the"),
              ElementsAre(' ', '1', 259));
  EXPECT_THAT(encode(R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel"})", "12"),
              ElementsAre(' ', '1', ' ', '2'));
  EXPECT_THAT(encode(R"({"type":"Digits"},{"type":"ByteLevel"})", "12"),
              ElementsAre(' ', '1', '2'));
  const std::string inverted =
      R"({"type":"Split","pattern":{"Regex":)"
      R"("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},)"
      R"("behavior":"Removed","invert":true},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";
  EXPECT_THAT(encode(inverted, "the the"), ElementsAre(258, 259));
}

TEST(Tokenizer, WarnsAboutIgnoredPaddingAndTruncation) {
  const std::string truncated =
      changed_seed("\"truncation\":null", R"("truncation":{"max_length":2})");
  const std::string both = changed_seed("\"padding\":null", R"("padding":{"pad_id":0})", truncated);
  std::vector<std::int64_t> tokens;
  const std::vector<std::string> lines = warnings_of([&] {
    tokens = parse_tokenizer(both, "padded.json").encode("the the the");
    (void)parse_tokenizer(both, "padded.json");
  });
  EXPECT_THAT(tokens, ElementsAre(258, 259, 259));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("padded.json: encode() does not apply the truncation"));
  EXPECT_THAT(lines[1], HasSubstr("does not apply the padding of the file"));
}

TEST(Tokenizer, ErrorNamesUnsupportedComponent) {
  const auto refuse = [](const std::string& part, const std::string& by, ErrorCode code,
                         const std::vector<std::string>& words) {
    SCOPED_TRACE(by);
    expect_error(code, words, [&] { parse_tokenizer(changed_seed(part, by), "my.json"); });
  };
  const ErrorCode other = ErrorCode::kUnimplemented, damaged = ErrorCode::kInvalidArgument;
  refuse(kNoNormalizer, R"("normalizer":{"type":"Lowercase"})", other,
         {"my.json", "normalizer: expected NFC", "Lowercase"});
  refuse("\"BPE\"", "\"Unigram\"", other, {"model: expected BPE, got Unigram"});
  refuse("\"dropout\":null", "\"dropout\":0.1", other, {"no dropout, got 0.1"});
  refuse("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", other,
         {"decoder: expected ByteLevel, got WordPiece"});
  refuse("\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"",
         other, {"pre_tokenizer: expected ByteLevel", "Whitespace"});
  refuse(kByteLevel, R"({"type":"Sequence","pretokenizers":[{"type":"Digits"}]})", other,
         {"pre_tokenizer: expected ByteLevel", "Digits"});
  refuse(kByteLevel,
         R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
         R"({"Regex":"x"},"behavior":"Removed","invert":false},{"type":"ByteLevel"}]})",
         other, {"behavior Isolated", "Removed"});
  refuse("\"th e\"", "\"the\"", damaged, {"my.json", "merges[2]", "got 'the'"});
  refuse("\"th e\"", "\"th x\"", damaged, {"'thx' is not in the vocabulary"});
  refuse("\"A\":65,", "", damaged, {"none for byte 65", "initial alphabet"});
  refuse("\"A\":65,", "\"A\":-1,", damaged, {"token numbers from 0", "-1"});
  refuse("\"A\":65,", "\"A\":10000000,", damaged, {"got 10000000"});
  refuse("\"model\"", "\"mode\"", other, {"model: expected BPE, got null"});
  expect_error(damaged, {"my.json"}, [] { parse_tokenizer("{\"a", "my.json"); });
  expect_error(damaged, {"my.json"}, [] { parse_tokenizer("[]", "my.json"); });
}

TEST(Tokenizer, RefusesUnknownTokens) {
  for (const std::int64_t token : {-1, 263}) {
    EXPECT_ERROR((void)small_tokenizer().decode(std::vector{token}), kOutOfRange, "0 to 262",
                 concat(token));
  }
  EXPECT_ERROR((void)small_tokenizer().number_of("nothing"), kNotFound,
               "'nothing' is not in the vocabulary");
}

TEST(Tokenizer, ReadsGpt2Files) {
  const Json file = Json::parse(tokenizer_seed());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : file.at("model").at("merges").as_array())
    merges += merge.as_string() + "\n";
  Json vocabulary = file.at("model").at("vocab");
  vocabulary.set("<|end|>", 261);
  const auto parse = [&](const std::vector<std::string>& special) {
    return parse_gpt2_tokenizer(vocabulary.dump(), merges, "vocab.json, merges.txt", special);
  };
  EXPECT_THAT(parse({"<|end|>"}).encode("the the<|end|>"), ElementsAre(258, 259, 261));
  EXPECT_THAT(parse({}).encode("the<|"), ElementsAre(258, '<', '|'));
  EXPECT_EQ(parse({}).encode("<|end|>").size(), 7u);
  EXPECT_INVALID(parse({"<|no|>"}), "vocab.json", "'<|no|>' is not in the vocabulary");
  EXPECT_INVALID(parse_gpt2_tokenizer(vocabulary.dump(), "t h\nth", "vocab.json, merges.txt"),
                 "merges, line 2", "got 'th'");
  EXPECT_ERROR(read_tokenizer("/no/tokenizer.json"), kNotFound,
               "read_tokenizer: ", "/no/tokenizer.json");
}

// A common introductory example of byte-pair encoding. Among equally frequent pairs, the pair found
// first is merged first.
TEST(TrainTokenizer, MergesMostFrequentPairsFirst) {
  const Json file = Json::parse(train_tokenizer("aaabdaaabac", 290));
  std::vector<std::string> merges;
  for (const Json& pair : file.at("model").at("merges").as_array())
    merges.push_back(pair.as_array()[0].as_string() + " " + pair.as_array()[1].as_string());
  EXPECT_THAT(merges, ElementsAre("a a", "a b", "aa ab"));
}

TEST(TrainTokenizer, ProducesWorkingTokenizer) {
  std::string text;
  for (std::uint64_t number = 0; number < 300; ++number) text += random_text(number, 40);
  const BytePairTokenizer tokenizer =
      parse_tokenizer(train_tokenizer(text, 350, {"<|endoftext|>"}), "learnt");
  EXPECT_EQ(tokenizer.vocabulary_size(), 350);
  EXPECT_EQ(tokenizer.number_of("<|endoftext|>"), 0);
  const std::vector<std::int64_t> tokens = tokenizer.encode(text + "<|endoftext|>\xFF");
  EXPECT_EQ(tokenizer.decode(tokens), text + "<|endoftext|>\xFF");
  EXPECT_LT(tokens.size(), text.size() * 2 / 3);
}

TEST(TrainTokenizer, SupportsByteOnlyVocabulary) {
  const BytePairTokenizer bytes = parse_tokenizer(train_tokenizer("aaaa", 256), "bytes");
  EXPECT_EQ(bytes.vocabulary_size(), 256);
  EXPECT_EQ(bytes.encode("aaaa").size(), 4u);
  // No pair occurs twice, so there are fewer tokens than allowed.
  EXPECT_EQ(parse_tokenizer(train_tokenizer("abcd", 300), "few").vocabulary_size(), 256);
  EXPECT_INVALID((void)train_tokenizer("a", 256, {"<|end|>"}),
                 "train_tokenizer: expected a vocabulary of at least 257 tokens", "got 256");
  EXPECT_INVALID((void)train_tokenizer("a", 300, {"<|end|>", "<|end|>"}),
                 "'<|end|>' is given twice");
  EXPECT_INVALID((void)train_tokenizer("a", 300, {"a"}),
                 "'a' is given twice, or is already the token");
}

}  // namespace tutti::testing::tokenizer_test
