// The receiving side of a session: only what its checksum says is given on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// One thread at a time.
class SessionReceiver {
 public:
  /// Verified bytes into `places`; from the socket, too, if it is open. Throws kUnavailable when
  /// the connection is broken, kDataLoss when it brought a damaged chunk, and then has given
  /// nothing in this call.
  std::size_t read(const FileDescriptor& socket, std::span<const iovec> places);

  /// Bytes of the stream that have arrived and were verified.
  std::uint64_t received() const { return received_; }
  /// What the peer has of the other direction.
  std::uint64_t acked() const { return acked_; }
  bool has_said_bye() const { return bye_ && ready_begin_ == ready_end_; }
  /// A new connection: it begins with a chunk.
  void restart();

 private:
  static constexpr std::size_t kRoom = std::size_t{256} << 10;

  std::size_t give(std::span<const iovec> places, std::size_t& place, std::size_t& filled);
  bool take_chunk();
  bool fill(const FileDescriptor& socket);

  // [ready_begin_, ready_end_): verified. [ready_end_ or parse_, end_): not looked at yet.
  std::vector<std::byte> bytes_;
  std::size_t ready_begin_ = 0, ready_end_ = 0, parse_ = 0, end_ = 0;
  std::uint64_t received_ = 0, acked_ = 0;
  bool bye_ = false;
};

}  // namespace tutti::internal
