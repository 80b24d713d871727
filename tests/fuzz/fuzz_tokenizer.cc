// Fuzzes the parser of tokenizer.json: any input yields an Error, or a tokenizer that can encode
// the input and decode the tokens.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/data/tokenizer.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    const BytePairTokenizer tokenizer = parse_tokenizer(bytes, "fuzz");
    (void)tokenizer.decode(tokenizer.encode(bytes));
  });
}
