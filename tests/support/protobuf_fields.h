// Reads protocol buffers without their schemas, for tests of files that contain them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

namespace tutti::protobuf_fields {

/// Consumes a varint from the front of `bytes` and returns it.
inline std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

/// Returns the fields of a protocol buffer as number -> raw content; for a repeated field, only the
/// last value.
inline std::map<std::uint64_t, std::string_view> fields_of(std::string_view message) {
  std::map<std::uint64_t, std::string_view> fields;
  while (!message.empty()) {
    const std::uint64_t tag = take_varint(message);
    const std::string_view before = message;
    std::size_t length = 0;
    switch (tag & 7) {
      case 0:
        take_varint(message);
        length = before.size() - message.size();
        message = before;
        break;
      case 1:
        length = 8;
        break;
      case 5:
        length = 4;
        break;
      default:
        length = take_varint(message);
    }
    fields[tag >> 3] = message.substr(0, length);
    message.remove_prefix(length);
  }
  return fields;
}

}  // namespace tutti::protobuf_fields
