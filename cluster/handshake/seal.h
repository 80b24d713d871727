// Proofs on each frame after a handshake: nothing is altered, left out, repeated or put in.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/cluster/handshake/sha256.h"

namespace tutti {

using SealBytes = std::array<std::byte, 16>;

/// One direction of a connection; sender and receiver each have one with the session's key. The
/// seals are of the frames in order: HMAC-SHA256 over a count and the frame, cut to 16 bytes.
class FrameSeals {
 public:
  explicit FrameSeals(const Digest256& key) : key_(key) {}
  SealBytes next(std::span<const std::byte> frame);
  /// Whether `seal` is that of this frame as the next one.
  bool is_next(std::span<const std::byte> frame, std::span<const std::byte> seal);

 private:
  Digest256 key_;
  std::uint64_t count_ = 0;
};

}  // namespace tutti
