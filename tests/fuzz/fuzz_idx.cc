// Fuzzes the parser of IDX files: every input must yield a tensor or an Error.
// SPDX-License-Identifier: Apache-2.0
#include "data/image_sets.h"
#include "data/input_file.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    if (internal::is_gzip(bytes)) {
      parse_idx(internal::gunzip(bytes, "fuzz"), "fuzz");
    } else {
      parse_idx(bytes, "fuzz");
    }
  });
}
