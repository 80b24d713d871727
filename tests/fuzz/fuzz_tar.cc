// Fuzzes the reader of tar files: any input must yield samples or an Error. Skipping must count as
// many samples as reading does.
// SPDX-License-Identifier: Apache-2.0
#include "data/tar_reader.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti;

namespace {
internal::TarSampleReader reader_of(std::string_view bytes) {
  return internal::TarSampleReader(
      internal::TarReader(internal::InputFile::of_bytes(std::string(bytes), "fuzz")));
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    auto reader = reader_of(bytes);
    std::int64_t samples = 0;
    for (; const auto sample = reader.next(); ++samples) {
      if (sample->files.empty()) std::abort();
    }
    if (reader_of(bytes).skip(INT64_MAX) != samples) std::abort();
  });
}
