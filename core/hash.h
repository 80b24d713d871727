// XXH3-128, the hash of weights, slots and files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
