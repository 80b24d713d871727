// Bytes of file formats: little-endian numbers, and checksums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::internal {

// Little-endian numbers in the bytes of files, on any machine.

/// The number whose bytes stand at `offset`; they must be there.
template <std::unsigned_integral Number>
Number get_little_endian(std::string_view bytes, std::size_t offset) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[offset + i]);
    number = static_cast<Number>(number | static_cast<Number>(byte) << (8 * i));
  }
  return number;
}

/// Appends the bytes of `number`.
template <std::unsigned_integral Number>
void put_little_endian(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }
}

// Checksums of file formats: masked CRC-32C (TFRecord) and CRC-32 (zip).

/// TFRecord's masked form of CRC-32C (core/crc32c.h), which keeps checksums of checksums apart.
std::uint32_t masked_crc32c(std::string_view bytes);
/// CRC-32 (ISO 3309) of zip files.
std::uint32_t crc32(std::string_view bytes);

}  // namespace tutti::internal
