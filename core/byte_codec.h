// Encoding and decoding of little-endian numbers and raw bytes; encoding of protobuf fields.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::internal {

/// Appends the bytes of `number` to a string or a vector of bytes.
template <class Bytes, std::unsigned_integral Number>
void put_little_endian(Bytes& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<typename Bytes::value_type>(number >> (8 * i) & 0xff));
  }
}

/// Returns the number stored at `offset`. Requires: all its bytes are within `bytes`.
template <std::unsigned_integral Number, class Bytes>
Number get_little_endian(const Bytes& bytes, std::size_t offset) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[offset + i]);
    number = static_cast<Number>(number | static_cast<Number>(byte) << (8 * i));
  }
  return number;
}

// The subset of protobuf's wire format that Example, event files, ONNX and XLA's options need.

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// Appends a variable-length number to a message.
inline void put_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}
/// Appends the number and type of a field, which precede its value.
inline void put_tag(std::string& message, std::uint32_t field, WireType type) {
  put_varint(message, std::uint64_t{field} << 3 | static_cast<unsigned>(type));
}
/// Appends a field that contains bytes or an encoded message.
inline void put_bytes(std::string& message, std::uint32_t field, std::string_view bytes) {
  put_tag(message, field, WireType::kBytes);
  put_varint(message, bytes.size());
  message += bytes;
}

/// Writer that appends numbers and bytes to a vector.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    put_little_endian(bytes_, value);
  }
  /// Appends the bytes. Not inlined, because g++ 12 would issue a false warning about the vector's
  /// growth.
  [[gnu::noinline]] void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reader of a span that checks every length. A read past the end returns 0 or an empty span, as do
/// all later reads.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const auto bytes = raw(sizeof(T));
    return bytes.empty() ? T{0} : get_little_endian<T>(bytes, 0);
  }
  std::span<const std::byte> raw(std::size_t size) {
    if (size > rest_.size()) failed_ = true;
    if (failed_) return {};
    const auto bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }
  bool failed() const { return failed_; }
  /// Returns true if all bytes were read and no read failed.
  bool is_complete() const { return !failed_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace tutti::internal
