// The sending side of a session: chunks, and what may have to be sent again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// Offsets count the bytes of the stream from its start. One thread at a time.
class SessionSender {
 public:
  /// Copies what there is room for.
  std::size_t take(std::span<const iovec> parts);
  /// Writes chunks as far as the socket takes them; all of them and those that come say that
  /// everything before `ack` has arrived. Throws kUnavailable when the connection is broken.
  void push(const FileDescriptor& socket, std::uint64_t ack);
  /// Whether take() would take any: the peer has acknowledged enough.
  bool has_room() const { return taken_ - acked_ < kRoom; }
  /// Whether bytes wait for the socket.
  bool has_pending() const { return in_chunk_ || sent_ < taken_; }
  /// Whether the peer should hear how much has arrived although there is nothing else to send.
  bool owes_ack(std::uint64_t received) const { return received >= ack_said_ + kRoom / 4; }
  /// The peer has all bytes before this one.
  void forget(std::uint64_t acked);
  /// A new connection, whose peer has so many bytes. Throws kDataLoss for a number that cannot be.
  void restart(std::uint64_t received);
  void say_bye() { bye_due_ = true; }

 private:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;  // a power of two

  void begin_chunk(ChunkHeader::Kind kind, std::uint64_t ack);
  bool write_chunk(const FileDescriptor& socket);
  /// The two places of a range of the stream.
  std::array<std::span<std::byte>, 2> places(std::uint64_t offset, std::size_t count);

  std::vector<std::byte> bytes_;  // of [acked_, taken_)
  std::uint64_t taken_ = 0, sent_ = 0, acked_ = 0;
  bool in_chunk_ = false;
  ChunkHeader chunk_;
  std::array<std::byte, kChunkHeaderBytes> header_{};
  std::size_t chunk_written_ = 0;  // of header and payload
  std::uint64_t ack_said_ = 0;
  bool bye_due_ = false;
};

}  // namespace tutti::internal
