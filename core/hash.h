// Checksums: XXH3-128 of weights, optimizer slots and files; CRC32C of messages and records.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// Incremental XXH3-128 hash. The result depends on the bytes alone, not on how they were split
/// into updates.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Returns 32 hexadecimal digits. More updates may follow.
  std::string hex_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the digest that Hasher computes for one sequence of bytes.
std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of(std::string_view text);

}  // namespace tutti

namespace tutti::internal {

/// Returns the CRC32C of `bytes` appended to data whose checksum is `crc` (0: no data). Uses the
/// processor's CRC instruction if it has one.
std::uint32_t crc32c_of(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tutti::internal
