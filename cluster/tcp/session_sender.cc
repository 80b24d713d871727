// Making and writing chunks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {

namespace {

constexpr std::uint32_t kShortFront = 1024;
// With what stands before it, one packet of a loopback device (65,483 bytes); more would cost a
// second one for a few bytes.
constexpr std::uint32_t kBestChunk = 65280;

/// How long the next chunk of so many bytes is. A short one behind it would cost more.
std::uint64_t chunk_of(std::uint64_t bytes) { return bytes <= kLongestChunk ? bytes : kBestChunk; }

/// How much of a body of so many bytes goes ahead, with what stands before it, so that the rest is
/// one packet. It is on its way while the checksum of the rest is made, and the rest acknowledges
/// the peer's: more than a packet that nothing acknowledges would have one of its own for that.
std::uint64_t ahead_of(std::uint64_t bytes) {
  return bytes > kBestChunk && bytes <= kLongestChunk ? bytes - kBestChunk : 0;
}

}  // namespace

std::size_t session_window(std::size_t num_connections) {
  return (std::size_t{1} << 20) * std::bit_ceil(num_connections);
}

SessionSender::SessionSender(std::size_t num_connections)
    : room_(session_window(num_connections)), bytes_(room_), lines_(num_connections) {}

std::size_t SessionSender::take(std::span<const iovec> parts, std::size_t skip, Amount amount,
                                bool lends) {
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min<std::size_t>(skip, part.iov_len);
    skip -= skipped;
    const std::size_t rest = part.iov_len - skipped;
    const bool is_long = part.iov_len >= kLongPart;
    const bool is_cut = is_long && amount == Amount::kChunk;
    const std::uint64_t ahead = is_cut && lends && skipped == 0 ? ahead_of(rest) : 0;
    const std::uint64_t wanted = ahead > 0 ? ahead : is_cut ? chunk_of(rest) : rest;
    const std::size_t count = std::min(wanted, room_ - (taken_ - acked_));
    const std::span bytes(static_cast<const std::byte*>(part.iov_base) + skipped, count);
    const bool is_own = is_long && ahead == 0;  // chunks of its own
    if (is_own && (skipped == 0 || lends)) end_chunk_at(taken_);
    if (is_own && lends) {
      bytes_.lend(taken_, bytes);
    } else {
      bytes_.copy(taken_, bytes);
    }
    taken_ += count;
    total += count;
    if (is_long && (count == rest || lends)) end_chunk_at(taken_);
    if (count < rest) break;
  }
  return total;
}

void SessionSender::end_chunk_at(std::uint64_t offset) {
  if (offset > next_ && (borders_.empty() || borders_.back() < offset)) borders_.push_back(offset);
}

bool SessionSender::has_pending() const {
  return has_data() || std::ranges::any_of(lines_, [](const Line& line) { return line.in_chunk; });
}

std::size_t SessionSender::free_line(Sockets sockets) {
  const bool take_turns = taken_ - next_ > kStripedBytes || !again_.empty();
  const std::size_t first = take_turns ? turn_ : 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const std::size_t connection = (first + i) % lines_.size();
    const Line& line = lines_[connection];
    if (!sockets[connection]->is_open() || line.in_chunk || line.has_failed) continue;
    if (take_turns) turn_ = (connection + 1) % lines_.size();
    return connection;
  }
  return kNone;
}

SessionSender::Piece& SessionSender::piece_at(std::uint64_t offset) {
  const auto found = std::ranges::lower_bound(pieces_, offset, {}, &Piece::offset);
  TUTTI_CHECK(found != pieces_.end() && found->offset == offset, "no piece begins at ", offset);
  return *found;
}

SessionSender::Piece& SessionSender::next_piece() {
  if (!again_.empty()) {
    Piece& piece = piece_at(again_.front());
    again_.pop_front();
    return piece;
  }
  while (!borders_.empty() && borders_.front() <= next_) borders_.pop_front();
  const std::uint64_t end = borders_.empty() ? taken_ : borders_.front();
  const auto length = static_cast<std::uint32_t>(chunk_of(end - next_));
  const auto [first, second] = bytes_.places(next_, length);
  pieces_.push_back({next_, length, crc32c_of(second, crc32c_of(first)), kNone});
  next_ += length;
  return pieces_.back();
}

ChunkHeader SessionSender::next_chunk(std::size_t connection, std::uint64_t ack) {
  using Kind = ChunkHeader::Kind;
  if (has_data()) {
    Piece& piece = next_piece();
    piece.connection = connection;
    return {Kind::kData, piece.length, piece.crc, piece.offset, ack};
  }
  if (std::exchange(bye_due_, false)) return {Kind::kBye, 0, 0, next_, ack};
  return {Kind::kAck, 0, 0, next_, ack};
}

void SessionSender::begin(std::size_t connection, const ChunkHeader& chunk) {
  Line& line = lines_[connection];
  line.num_chunks = line.num_bytes = line.written = 0;
  line.in_chunk = line.has_spoken = true;
  add(line, chunk);
}

void SessionSender::add(Line& line, const ChunkHeader& chunk) {
  line.chunks[line.num_chunks] = chunk;
  line.headers[line.num_chunks] = encode(chunk);
  line.num_chunks += 1;
  line.num_bytes += kChunkHeaderBytes + chunk.length;
  ack_said_ = chunk.ack;
}

void SessionSender::write(std::size_t connection, const FileDescriptor& socket) {
  Line& line = lines_[connection];
  if (line.has_failed || !socket.is_open()) return;
  while (line.written < line.num_bytes) {
    if (!write_some(line, socket)) return;
  }
  line.in_chunk = false;
}

/// False: the socket is full, or broken.
bool SessionSender::write_some(Line& line, const FileDescriptor& socket) {
  std::array<iovec, 3 * kTogether> parts{};
  std::size_t num_parts = 0, skip = line.written;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped < bytes.size()) {  // they are not changed
      parts[num_parts++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
    }
  };
  for (std::size_t i = 0; i < line.num_chunks; ++i) {
    const ChunkHeader& chunk = line.chunks[i];
    add(line.headers[i]);
    for (const auto place : bytes_.places(chunk.offset, chunk.length)) add(place);
  }
  msghdr call{};
  call.msg_iov = parts.data();
  call.msg_iovlen = num_parts;
  const ssize_t count = ::sendmsg(socket.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) {
    line.written += static_cast<std::size_t>(count);
    return true;
  }
  if (errno == EINTR) return true;
  line.has_failed = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
  return false;
}

void SessionSender::push(Sockets sockets, std::uint64_t ack) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].in_chunk) write(i, *sockets[i]);
  }
  trim();
  while (has_data() || bye_due_ || owes_ack(ack)) {
    const std::size_t connection = free_line(sockets);
    if (connection == kNone) return;
    begin(connection, next_chunk(connection, ack));
    Line& line = lines_[connection];
    // What stands before a long part goes with it.
    const bool is_front = line.chunks[0].length < kShortFront && again_.empty();
    if (is_front && has_data()) add(line, next_chunk(connection, ack));
    write(connection, *sockets[connection]);
  }
}

void SessionSender::beat(Sockets sockets, std::uint64_t ack) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    Line& line = lines_[i];
    const bool is_silent = !line.in_chunk && !line.has_failed && !line.has_spoken;
    if (sockets[i]->is_open() && is_silent) {
      begin(i, {ChunkHeader::Kind::kAck, 0, 0, next_, ack});
      write(i, *sockets[i]);
    }
    line.has_spoken = false;
  }
}

void SessionSender::forget(std::uint64_t acked) {
  ack_heard_ = std::max(ack_heard_, acked);
  trim();
}

/// What a connection is writing stays, even if the peer has it from another one by now.
void SessionSender::trim() {
  std::uint64_t end = ack_heard_;
  for (const Line& line : lines_) {
    if (line.in_chunk) end = std::min(end, line.chunks[0].offset);
  }
  while (!pieces_.empty() && pieces_.front().end() <= end) {
    acked_ = pieces_.front().end();
    if (!again_.empty() && again_.front() == pieces_.front().offset) again_.pop_front();
    pieces_.pop_front();
  }
  bytes_.forget(acked_);
}

void SessionSender::lose(std::size_t connection) {
  lines_[connection] = {};
  ack_said_ = 0;  // it may have been said there
  bye_due_ = has_left_ && !is_bye_heard();
  for (Piece& piece : pieces_) {
    if (piece.connection == connection) piece.connection = kNone;
  }
  again_.clear();
  for (const Piece& piece : pieces_) {
    if (piece.connection == kNone) again_.push_back(piece.offset);
  }
}

void SessionSender::restart(std::size_t connection, std::uint64_t received) {
  lose(connection);
  // With several connections a newer number may have come over another one meanwhile.
  const bool is_too_old = lines_.size() == 1 && received < acked_;
  if (is_too_old || received > next_ + (has_left_ ? 1 : 0)) {
    fail(ErrorCode::kDataLoss, "tcp: a peer that connects again says that it has ", received,
         " bytes; expected ", acked_, " to ", next_);
  }
  turn_ = connection;  // what is sent again goes where something arrives
  forget(received);
  bye_due_ = bye_due_ && !is_bye_heard();
}

}  // namespace tutti::internal
