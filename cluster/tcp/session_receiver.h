// The receiving side of a session: only what its checksum says is given on, in its order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/core/error.h"

namespace tutti::internal {

/// Makes one stream of the chunks of several connections. A chunk that comes before its turn waits
/// where it was read, or, when its connection has to be read on, beside: never more than the peer
/// may send without an acknowledgement. One thread at a time.
class SessionReceiver {
 public:
  explicit SessionReceiver(std::size_t num_connections = 1) : lanes_(num_connections) {}

  /// Verified bytes into `places`, as far as they are here.
  std::size_t give(std::span<const iovec> places);
  /// Reads what the socket of a connection has now, when give() has given all; false: nothing.
  bool fill(std::size_t connection, const FileDescriptor& socket);
  /// Whether fill() would look: all was given, and the connection's chunks leave room.
  bool has_room(std::size_t connection) const {
    const Lane& lane = lanes_[connection];
    return is_given() && lane.end - lane.begin < kRoom;
  }
  /// Makes room on connections whose chunks are early; false: there are none.
  bool set_aside();
  /// Whether a chunk waits for an earlier one, which another connection brings.
  bool has_gap() const;
  /// Why a connection gives no more: kUnavailable when it is broken, kDataLoss when it has brought
  /// a damaged chunk. nullptr: it does.
  const Error* failure(std::size_t connection) const;
  /// Forgets what else a connection has brought; the next one begins with a chunk.
  void restart(std::size_t connection);

  /// Bytes of the stream that have arrived and were verified, none missing before them.
  std::uint64_t received() const { return received_; }
  /// What the peer has of the other direction.
  std::uint64_t acked() const { return acked_; }
  bool has_said_bye() const { return bye_at_ == received_ && ready_.empty(); }

 private:
  static constexpr std::size_t kRoom = std::size_t{256} << 10;
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// What one connection has brought: [begin, end) of `bytes`, beginning with a chunk.
  struct Lane {
    std::vector<std::byte> bytes;
    std::size_t begin = 0, end = 0;
    std::optional<ChunkHeader> head;  // of the chunk at `begin`, once it is complete and right
    std::optional<Error> failure;
    bool has_ended = false;  // the peer's good-bye came here
    std::span<const std::byte> payload() const {
      return std::span(bytes).subspan(begin + kChunkHeaderBytes, head->length);
    }
    void drop_head();
  };

  bool is_given() const { return ready_.empty() && ready_lane_ == kNone; }
  bool has_head(Lane& lane);
  bool take_head(Lane& lane);
  void check_place(const ChunkHeader& header) const;
  bool is_early(const Lane& lane) const { return lane.head && lane.head->offset > received_; }
  bool next_in_order(Lane& lane);
  bool next_ready();
  void keep_early(const Lane& lane);

  std::vector<Lane> lanes_;  // by connection
  // What is given now: of the head of a lane, or, if that is kNone, of ready_bytes_.
  std::span<const std::byte> ready_;
  std::size_t ready_lane_ = kNone;
  std::vector<std::byte> ready_bytes_;
  std::map<std::uint64_t, std::vector<std::byte>> early_;  // by offset
  std::uint64_t received_ = 0, acked_ = 0;
  std::optional<std::uint64_t> bye_at_;
};

}  // namespace tutti::internal
