// Messages on the wire "tcp": a length with its checksum, a seal, and the message's bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tutti/cluster/control/message.h"
#include "tutti/cluster/handshake/seal.h"

namespace tutti::internal {

inline constexpr std::size_t kControlFrameHeadBytes = 4 + 4 + sizeof(SealBytes);

/// Appends the frame of `message` to `out`.
void append_frame(std::vector<std::byte>& out, const Message& message, FrameSeals& seals);

/// Cuts a stream of bytes, however it arrives, into messages.
class FrameReader {
 public:
  explicit FrameReader(const FrameSeals& seals) : seals_(seals) {}
  void take(std::span<const std::byte> bytes);
  /// The next whole one. Throws kDataLoss for bytes that are none, for good: drop the connection.
  std::optional<Message> next();

 private:
  FrameSeals seals_;
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;  // of what has not been read
  bool is_broken_ = false;
};

}  // namespace tutti::internal
