// Fuzzes the reader of CSV files: any bytes give records or an Error, and records read equal again
// when every field is quoted.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/csv_schema.h"
#include "tutti/core/error.h"

namespace {

using Records = std::vector<std::vector<std::string>>;

Records read_all(std::string bytes) {
  tutti::internal::CsvReader reader(tutti::internal::InputFile::of_bytes(std::move(bytes), "fuzz"));
  tutti::internal::CsvRecord record;
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
  try {
    const Records records = read_all(std::string(reinterpret_cast<const char*>(data), size));
    if (read_all(quoted(records)) != records) std::abort();
    for (const auto& fields : records) {
      for (const std::string& field : fields) {
        for (tutti::DType dtype : tutti::kAllDTypes) tutti::internal::is_number(field, dtype);
      }
    }
  } catch (const tutti::Error&) {
  }
  return 0;
}
