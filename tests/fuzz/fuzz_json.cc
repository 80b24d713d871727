// Fuzzes the JSON reader: an accepted value must not change when it is written and read again.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/core/json.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size,
              [](std::string_view bytes) {
                const Json json = Json::parse(bytes, "fuzz");
                if (!(Json::parse(json.dump()) == json)) std::abort();
                if (!(Json::parse(json.dump(2)) == json)) std::abort();
              },
              {ErrorCode::kInvalidArgument});
}
