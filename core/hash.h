// Checksums: XXH3-128 of weights, slots and files; CRC32C of messages and records.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// Hashes a sequence of pieces; the result depends on the bytes alone, not on how they were cut
/// into pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// 32 hexadecimal digits. More updates may follow.
  std::string hex_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hasher's digest of one piece.
std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of(std::string_view text);

}  // namespace tutti

namespace tutti::internal {

/// Castagnoli's checksum of `bytes` after those of which `crc` is the checksum (0: none). With the
/// processor's instruction where it has one.
std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tutti::internal
