// Fuzzes the parser of TFRecord files: any bytes give records or an Error, and skipping counts as
// many as reading.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/data/records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    tutti::TFRecordParser parser(bytes, "fuzz");
    std::int64_t records = 0;
    while (parser.next()) ++records;
    if (tutti::TFRecordParser(bytes, "fuzz").skip(INT64_MAX) != records) std::abort();
  } catch (const tutti::Error&) {
  }
  return 0;
}
