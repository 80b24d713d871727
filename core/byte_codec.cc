// Texts and raw bytes. (Not in the header: inlined, g++ 12 warns falsely of the vector's growing.)
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/byte_codec.h"

namespace tutti::internal {

void ByteWriter::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void ByteWriter::text(std::string_view text) {
  number(static_cast<std::uint32_t>(text.size()));
  raw(std::as_bytes(std::span(text)));
}

void ByteWriter::field(std::string_view text, std::size_t width) {
  text = text.substr(0, width - 1);
  raw(std::as_bytes(std::span(text)));
  bytes_.resize(bytes_.size() + width - text.size());
}

std::string ByteReader::text(std::size_t longest) {
  const std::size_t size = number<std::uint32_t>();
  if (size > longest) failed_ = true;
  const auto bytes = raw(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string ByteReader::field(std::size_t width) {
  std::string text;
  bool has_ended = false;
  for (const std::byte byte : raw(width)) {
    const char c = static_cast<char>(byte);
    if (c == '\0') {
      has_ended = true;
    } else if (has_ended || c < ' ' || c > '~') {
      failed_ = true;
    } else {
      text += c;
    }
  }
  if (!has_ended) failed_ = true;
  return text;
}

}  // namespace tutti::internal
