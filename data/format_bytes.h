// Bytes of file formats: little-endian numbers, records of TFRecord files, fields of protobuf.
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

/// Turns the bytes of each element of `size` bytes round: big-endian numbers.
void reverse_each(std::byte* data, std::size_t bytes, std::size_t size);

// TFRecord files. A record is its length (8 bytes), the masked sum of these, the data and its
// masked sum.

/// TFRecord's masked form of CRC-32C (core/hash.h), which keeps checksums of checksums apart.
std::uint32_t masked_crc32c(std::string_view bytes);
/// Appends a record of a TFRecord file.
void put_record(std::string& bytes, std::string_view record);

// The few parts of protobuf's wire format that Example and TensorBoard's events need.

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// Append to a message: a number, what stands in front of a field's value, a whole field of bytes
/// or of a message.
void put_varint(std::string& message, std::uint64_t value);
void put_tag(std::string& message, std::uint32_t field, WireType type);
void put_bytes(std::string& message, std::uint32_t field, std::string_view bytes);

}  // namespace tutti::internal
