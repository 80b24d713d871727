// Fuzzes the parser of safetensors files: any bytes give tensors or an Error, and parsed tensors
// can be written and read again.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace {

std::optional<tutti::SafetensorsFile> parse_or_nothing(std::string_view bytes) {
  try {
    return tutti::parse_safetensors(bytes, "fuzz");
  } catch (const tutti::Error&) {
    return std::nullopt;
  }
}

std::optional<std::string> format_or_nothing(const tutti::SafetensorsFile& file) {
  try {
    return tutti::format_safetensors(file);
  } catch (const tutti::Error&) {
    return std::nullopt;  // an empty name can be read, but not written
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = parse_or_nothing({reinterpret_cast<const char*>(data), size});
  if (!file) return 0;
  const auto bytes = format_or_nothing(*file);
  if (!bytes) return 0;
  if (tutti::parse_safetensors(*bytes, "again").tensors.size() != file->tensors.size())
    std::abort();
  return 0;
}
