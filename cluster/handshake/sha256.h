// SHA-256 and HMAC-SHA256: what proves that a peer knows the job's secret.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tutti {

using Digest256 = std::array<std::byte, 32>;

/// FIPS 180-4. The result depends on the bytes alone, not on how they were cut into pieces.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// Ends it: call this once, last.
  Digest256 digest();

 private:
  void take_block(const std::byte* block);

  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, 64> block_{};
  std::uint64_t num_bytes_ = 0;
};

/// RFC 2104 over a message in pieces.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key);
  void update(std::span<const std::byte> bytes) { inner_.update(bytes); }
  void update(std::string_view text) { inner_.update(text); }
  Digest256 digest();

 private:
  Sha256 inner_;
  Sha256 outer_;
};

/// Takes the same time wherever the first difference is. Different lengths are different.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace tutti
