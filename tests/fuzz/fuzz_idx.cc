// Fuzzes the parser of IDX files: any bytes give a tensor or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/image_sets.h"
#include "data/input_file.h"
#include "tutti/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (tutti::internal::is_gzip(bytes)) {
      tutti::parse_idx(tutti::internal::gunzip(bytes, "fuzz"), "fuzz");
    } else {
      tutti::parse_idx(bytes, "fuzz");
    }
  } catch (const tutti::Error&) {
  }
  return 0;
}
