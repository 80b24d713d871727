// Fuzzes the parser of TFRecord files: every input must yield records or an Error. Skipping must
// count as many records as reading does.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/data/records.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    TFRecordParser parser(bytes, "fuzz");
    std::int64_t records = 0;
    while (parser.next()) ++records;
    if (TFRecordParser(bytes, "fuzz").skip(INT64_MAX) != records) std::abort();
  });
}
