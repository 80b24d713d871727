// The sending side of a session: chunks, and what may have to be sent again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/sent_bytes.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti::internal {

/// The connections of a session, those that are broken not open.
using Sockets = std::span<const FileDescriptor* const>;

inline constexpr std::size_t kLongPart = std::size_t{32} << 10;

/// The most bytes of a session with so many connections that the peer has not acknowledged.
std::size_t session_window(std::size_t num_connections);

/// Cuts the stream into chunks and gives each to a connection that has room. Few bytes go over the
/// first one alone; with more than kStripedBytes all take turns. Chunks keep their borders when
/// they are sent again. Offsets count the bytes of the stream from its start. One thread at a time.
class SessionSender {
 public:
  explicit SessionSender(std::size_t num_connections = 1);
  enum class Amount : std::uint8_t {
    kAll,    // that there is room for
    kChunk,  // of a long part at most one chunk: then it is on its way while the next is made
  };
  /// Copies `parts` after the first `skip` bytes. A part of kLongPart bytes or more has chunks of
  /// its own, so that it may be read to its place.
  std::size_t take(std::span<const iovec> parts, std::size_t skip = 0,
                   Amount amount = Amount::kAll) {
    return take(parts, skip, amount, false);
  }
  /// The same, and long parts are not copied: their memory stays as it is until all_returned() or
  /// take_back().
  std::size_t lend(std::span<const iovec> parts, std::size_t skip, Amount amount) {
    return take(parts, skip, amount, true);
  }
  /// Whether nothing before this byte of the stream is lent.
  bool all_returned(std::uint64_t end) const { return end <= bytes_.first_lent(); }
  /// What is lent before this byte is copied.
  void take_back(std::uint64_t end) { bytes_.take_back(end); }
  /// See SentBytes.
  void move_lent(std::uint64_t end, std::span<const std::byte> to) { bytes_.move_lent(end, to); }
  /// Writes chunks as far as the sockets take them; all of them and those that come say that
  /// everything before `ack` has arrived. A connection that is broken gets no more: reading it
  /// fails, too, after the peer's last words.
  void push(Sockets sockets, std::uint64_t ack);
  /// Says on each connection that has been silent since the last call that this rank is there.
  void beat(Sockets sockets, std::uint64_t ack);
  /// Whether take() would take any: the peer has acknowledged enough.
  bool has_room() const { return taken_ - acked_ < room_; }
  /// Whether bytes wait for a socket; the second: for this one.
  bool has_pending() const;
  bool has_pending(std::size_t connection) const { return lines_[connection].in_chunk; }
  /// Whether the peer may lack something that was taken.
  bool has_unacknowledged() const { return ack_heard_ < taken_; }
  /// Bytes that it has, as far as it has said.
  std::uint64_t acknowledged() const { return ack_heard_; }
  /// Whether the peer should hear how much has arrived although there is nothing else to send.
  bool owes_ack(std::uint64_t received) const {
    return received >= ack_said_ + (is_hurried_ ? 1 : room_ / 4);
  }
  /// From now on it should hear of everything at once: it waits for nothing else.
  void hurry() { is_hurried_ = true; }
  /// The peer has all bytes before this one; one more than there are: and the good-bye.
  void forget(std::uint64_t acked);
  /// What went over this connection and is not acknowledged goes over the others, or over the next
  /// one that comes.
  void lose(std::size_t connection);
  /// There is a new one in its place, whose peer has so many bytes. Throws kDataLoss for a number
  /// that cannot be.
  void restart(std::size_t connection, std::uint64_t received);
  /// Says good-bye behind all bytes, again and again until the peer has heard it; take() is not
  /// called afterwards.
  void say_bye() { bye_due_ = !std::exchange(has_left_, true) || bye_due_; }
  bool has_left() const { return has_left_; }
  bool is_bye_heard() const { return has_left_ && ack_heard_ > taken_; }

 private:
  /// Below it several connections cost more than they bring (measured on loopback).
  static constexpr std::size_t kStripedBytes = std::size_t{256} << 10;
  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::size_t kTogether = 2;

  /// A part of the stream that has been a chunk.
  struct Piece {
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t crc = 0;
    std::size_t connection = kNone;  // that it was given to; kNone: it waits
    std::uint64_t end() const { return offset + length; }
  };
  /// What one connection is writing.
  struct Line {
    bool in_chunk = false;
    bool has_failed = false;
    bool has_spoken = false;  // since the last beat()
    std::size_t num_chunks = 0;
    std::array<ChunkHeader, kTogether> chunks{};  // that are written together
    std::array<std::array<std::byte, kChunkHeaderBytes>, kTogether> headers{};
    std::size_t written = 0;  // of all of them
    std::size_t num_bytes = 0;
  };

  std::size_t take(std::span<const iovec> parts, std::size_t skip, Amount amount, bool lends);
  void end_chunk_at(std::uint64_t offset);
  bool has_data() const { return !again_.empty() || next_ < taken_; }
  /// Of those that are open and not within a chunk; kNone: there is none.
  std::size_t free_line(Sockets sockets);
  Piece& next_piece();
  ChunkHeader next_chunk(std::size_t connection, std::uint64_t ack);
  void begin(std::size_t connection, const ChunkHeader& chunk);
  void add(Line& line, const ChunkHeader& chunk);
  void write(std::size_t connection, const FileDescriptor& socket);
  bool write_some(Line& line, const FileDescriptor& socket);
  Piece& piece_at(std::uint64_t offset);
  void trim();

  const std::size_t room_;
  SentBytes bytes_;  // of [acked_, taken_)
  std::uint64_t taken_ = 0, next_ = 0, acked_ = 0;
  std::deque<Piece> pieces_;           // of [acked_, next_), one after the other
  std::deque<std::uint64_t> borders_;  // beyond next_ where a chunk has to end
  std::deque<std::uint64_t> again_;    // where pieces begin that wait; in order
  std::vector<Line> lines_;            // by connection
  std::size_t turn_ = 0;               // whose it is where all take turns
  std::uint64_t ack_said_ = 0, ack_heard_ = 0;
  bool has_left_ = false, bye_due_ = false, is_hurried_ = false;
};

}  // namespace tutti::internal
