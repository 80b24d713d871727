// Encodes and decodes the texts of a JSON array, or trains a tokenizer, for tokenizer_test.py.
// Usage: tokenize_texts TEXTS.json TOKENIZER.json
//    or: tokenize_texts TEXTS.json VOCAB.json MERGES.txt [SPECIAL ...]
//    or: tokenize_texts --train TEXT SIZE TOKENIZER.json
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "core/file.h"
#include "tutti/core/json.h"
#include "tutti/data/tokenizer.h"

using namespace tutti;

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.at(0) == "--train") {
    write_file_atomically(arguments.at(3),
                          train_tokenizer(read_file(arguments.at(1)), std::stoll(arguments.at(2)),
                                          {"<|endoftext|>"}));
    return 0;
  }
  const BytePairTokenizer tokenizer =
      arguments.size() == 2 ? read_tokenizer(arguments.at(1))
                            : read_gpt2_tokenizer(arguments.at(1), arguments.at(2),
                                                  {arguments.begin() + 3, arguments.end()});
  Json results = Json::array();
  const Json texts = Json::parse(read_file(arguments.at(0)));
  for (const Json& text : texts.as_array()) {
    const std::vector<std::int64_t> tokens = tokenizer.encode(text.as_string());
    results.push_back(
        Json::object().set("tokens", Json::array_of(tokens)).set("text", tokenizer.decode(tokens)));
  }
  std::puts(results.dump().c_str());
}
