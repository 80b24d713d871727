// Fuzzes the JSON reader: whatever is accepted must be written and read back to an equal value.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/core/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tutti::Json json = tutti::Json::parse(text, "fuzz");
    if (!(tutti::Json::parse(json.dump()) == json)) std::abort();
    if (!(tutti::Json::parse(json.dump(2)) == json)) std::abort();
  } catch (const tutti::Error& error) {
    if (error.code() != tutti::ErrorCode::kInvalidArgument) std::abort();
  }
  return 0;
}
