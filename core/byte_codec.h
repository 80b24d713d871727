// Little-endian numbers and raw bytes, written and read with every length checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::internal {

/// Appends to a vector.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  /// Not inlined: where it is, g++ 12 warns falsely of the vector's growing.
  [[gnu::noinline]] void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads from a span. What does not fit makes it failed for good, and gives zeros.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const auto bytes = raw(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::span<const std::byte> raw(std::size_t size) {
    if (size > rest_.size()) failed_ = true;
    if (failed_) return {};
    const auto bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }
  bool failed() const { return failed_; }
  /// Whether all was read, and nothing more was asked for.
  bool is_complete() const { return !failed_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace tutti::internal
