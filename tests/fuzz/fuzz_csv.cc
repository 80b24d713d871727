// Fuzzes the CSV reader: every input must give records or an Error. Records written with all fields
// quoted must be equal when read back.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "data/csv_schema.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti;

namespace {
using Records = std::vector<std::vector<std::string>>;

Records read_all(std::string bytes) {
  internal::CsvReader reader(internal::InputFile::of_bytes(std::move(bytes), "fuzz"));
  internal::CsvRecord record;
  Records records;
  while (reader.next(record)) records.push_back(record.fields());
  return records;
}

std::string quoted(const Records& records) {
  std::string bytes;
  for (const auto& fields : records) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      bytes += i == 0 ? "\"" : ",\"";
      for (char letter : fields[i]) bytes.append(letter == '"' ? 2 : 1, letter);
      bytes += '"';
    }
    bytes += '\n';
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    const Records records = read_all(std::string(bytes));
    if (read_all(quoted(records)) != records) std::abort();
    for (const auto& fields : records) {
      for (const std::string& field : fields) {
        for (DType dtype : kAllDTypes) internal::is_number(field, dtype);
      }
    }
  });
}
