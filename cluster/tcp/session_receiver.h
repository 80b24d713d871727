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
  /// Where the bytes that come next will be given to: until the next call a long chunk may *land*
  /// there at once. What give() has not counted is not sure. Empty: nowhere, but a landing goes on.
  void aim(std::span<std::byte> place) { aim_ = place; }
  /// What has landed, and was not given, moves; its place is not touched afterwards.
  void leave();
  /// Reads what the socket of a connection has now, when give() has given all or after keep();
  /// false: nothing.
  bool fill(std::size_t connection, const FileDescriptor& socket);
  /// Takes what has come to memory of its own, although nobody reads: so it counts as received.
  /// False: there is as much of it as a peer may send unacknowledged.
  bool keep();
  /// Makes room on connections whose chunks are early; false: there are none.
  bool set_aside();
  /// Whether a chunk waits for an earlier one, which another connection brings.
  bool has_gap() const;
  /// Why a connection gives no more: kUnavailable when it is broken, kDataLoss when it has brought
  /// a damaged chunk. nullptr: it does.
  const Error* failure(std::size_t connection) const;
  /// Forgets what else a connection has brought; the next one begins with a chunk.
  void restart(std::size_t connection);

  /// Bytes of the stream that have arrived and were verified, none missing before them; the peer's
  /// good-bye behind them counts as one more.
  std::uint64_t received() const { return received_ + (has_bye() ? 1 : 0); }
  /// What the peer has of the other direction.
  std::uint64_t acked() const { return acked_; }
  /// Whether the peer's good-bye has come; has_bye(): and all that stands before it;
  /// has_said_bye(): and all of that was given.
  bool is_ending() const { return bye_at_.has_value(); }
  bool has_bye() const { return bye_at_ == received_; }
  bool has_said_bye() const { return has_bye() && given_ == received_ && ready_.empty(); }

 private:
  static constexpr std::size_t kRoom = std::size_t{256} << 10;
  static constexpr std::size_t kShortLook = std::size_t{4} << 10;
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// What one connection has brought: [begin, end) of `bytes`, beginning with a chunk.
  struct Lane {
    std::vector<std::byte> bytes;
    std::size_t begin = 0, end = 0;
    std::optional<ChunkHeader> head;     // of the first chunk, once it is complete and right
    std::optional<ChunkHeader> landing;  // of the first chunk, while it is not
    std::byte* place = nullptr;          // of the payload of either; null: it is at `begin`
    std::size_t landed = 0;              // of that payload
    std::size_t whole = 0;  // bytes of the first chunk, if it does not land and is not complete
    std::size_t look = kShortLook;  // bytes to read where no long chunk is expected
    std::optional<Error> failure;
    std::span<const std::byte> payload() const {
      if (place) return {place, head->length};
      return std::span(bytes).subspan(begin + kChunkHeaderBytes, head->length);
    }
    void drop_head();
    void put_back();
  };

  bool has_head(Lane& lane);
  bool take_head(Lane& lane);
  bool take_landed(Lane& lane);
  void take_over(Lane& lane, const ChunkHeader& header, std::span<const std::byte> payload);
  bool may_land(const Lane& lane, const ChunkHeader& header) const;
  void begin_landing(Lane& lane);
  bool receive(Lane& lane, const FileDescriptor& socket);
  void glance_behind(const Lane& lane);
  void check_place(const ChunkHeader& header) const;
  bool is_early(const Lane& lane) const { return lane.head && lane.head->offset > received_; }
  bool next_in_order(Lane& lane);
  bool next_ready();
  void keep_ready();
  void keep_early(const Lane& lane);
  void count_kept();

  std::vector<Lane> lanes_;  // by connection
  // What is given now: of the head of a lane, or, if that is kNone, of ready_bytes_.
  std::span<const std::byte> ready_;
  std::size_t ready_lane_ = kNone;
  std::vector<std::byte> ready_bytes_;
  std::span<std::byte> aim_;
  // By offset: chunks from received_ on, and those between given_ and received_.
  std::map<std::uint64_t, std::vector<std::byte>> early_;
  std::uint64_t given_ = 0;  // up to the end of what is given now
  std::uint64_t received_ = 0, acked_ = 0;
  std::optional<std::uint64_t> bye_at_;
};

}  // namespace tutti::internal
