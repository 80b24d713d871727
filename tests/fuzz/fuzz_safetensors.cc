// Fuzzes the parser for safetensors files: any input yields tensors or an Error. Parsed tensors can
// be written and read again.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/checkpoint/safetensors.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    const SafetensorsFile file = parse_safetensors(bytes, "fuzz");
    const std::string written = format_safetensors(file);  // throws if a tensor has no name
    const auto num_read_again = [&]() noexcept {
      return parse_safetensors(written, "again").tensors.size();
    };
    if (num_read_again() != file.tensors.size()) std::abort();
  });
}
