// Bytes of file formats: those of protobuf, and records of TFRecord files.
// SPDX-License-Identifier: Apache-2.0
#include "data/format_bytes.h"

#include <algorithm>
#include <span>

#include "core/hash.h"

namespace tutti::internal {

void reverse_each(std::byte* data, std::size_t bytes, std::size_t size) {
  if (size == 1) return;
  for (std::size_t i = 0; i < bytes; i += size) std::reverse(data + i, data + i + size);
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c_of(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void put_record(std::string& bytes, std::string_view record) {
  std::string length;
  put_little_endian(length, std::uint64_t{record.size()});
  bytes += length;
  put_little_endian(bytes, masked_crc32c(length));
  bytes += record;
  put_little_endian(bytes, masked_crc32c(record));
}

void put_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}

void put_tag(std::string& message, std::uint32_t field, WireType type) {
  put_varint(message, std::uint64_t{field} << 3 | static_cast<unsigned>(type));
}

void put_bytes(std::string& message, std::uint32_t field, std::string_view bytes) {
  put_tag(message, field, WireType::kBytes);
  put_varint(message, bytes.size());
  message += bytes;
}

}  // namespace tutti::internal
