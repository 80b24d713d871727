// Fuzzes the reader of tar files: any bytes give samples or an Error, and skipping counts as many
// as reading.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "data/tar_reader.h"
#include "tutti/core/error.h"

namespace {

tutti::internal::TarSampleReader reader_of(const std::string& bytes) {
  return tutti::internal::TarSampleReader(
      tutti::internal::TarReader(tutti::internal::InputFile::of_bytes(bytes, "fuzz")));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    auto reader = reader_of(bytes);
    std::int64_t samples = 0;
    for (; const auto sample = reader.next(); ++samples) {
      if (sample->files.empty()) std::abort();
    }
    if (reader_of(bytes).skip(INT64_MAX) != samples) std::abort();
  } catch (const tutti::Error&) {
  }
  return 0;
}
