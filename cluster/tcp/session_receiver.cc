// Reading chunks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_receiver.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tutti/cluster/tcp/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {

std::size_t SessionReceiver::read(const FileDescriptor& socket, std::span<const iovec> places) {
  if (bytes_.empty()) bytes_.resize(kRoom);
  std::size_t total = 0, place = 0, filled = 0;
  for (;;) {
    total += give(places, place, filled);
    if (place == places.size()) return total;
    try {
      if (take_chunk()) continue;
      // What comes later is found later, so that a failure takes nothing from what was given.
      if (total > 0 || !fill(socket)) return total;
    } catch (const Error&) {
      if (total == 0) throw;
      return total;  // it comes to light again
    }
  }
}

std::size_t SessionReceiver::give(std::span<const iovec> places, std::size_t& place,
                                  std::size_t& filled) {
  std::size_t total = 0;
  while (place < places.size() && ready_begin_ < ready_end_) {
    const iovec& part = places[place];
    const std::size_t count = std::min(part.iov_len - filled, ready_end_ - ready_begin_);
    std::memcpy(static_cast<std::byte*>(part.iov_base) + filled, bytes_.data() + ready_begin_,
                count);
    ready_begin_ += count;
    filled += count;
    total += count;
    if (filled == part.iov_len) ++place, filled = 0;
  }
  return total;
}

/// Verifies the next chunk, if it is complete. No bytes are ready before.
bool SessionReceiver::take_chunk() {
  if (end_ - parse_ < kChunkHeaderBytes) return false;
  const auto bytes = std::span<const std::byte>(bytes_).subspan(parse_);
  const ChunkHeader header = decode_chunk_header(bytes.first<kChunkHeaderBytes>());
  const std::size_t all = kChunkHeaderBytes + header.length;
  if (end_ - parse_ < all) return false;
  if (crc32c_of(bytes.subspan(kChunkHeaderBytes, header.length)) != header.payload_crc) {
    fail(ErrorCode::kDataLoss, "tcp: a chunk of ", header.length, " bytes was damaged");
  }
  if (header.offset != received_) {
    fail(ErrorCode::kDataLoss, "tcp: a chunk is missing; expected byte ", received_, ", got ",
         header.offset);
  }
  acked_ = std::max(acked_, header.ack);
  bye_ = bye_ || header.kind == ChunkHeader::Kind::kBye;
  received_ += header.length;
  ready_begin_ = parse_ + kChunkHeaderBytes;
  ready_end_ = parse_ = parse_ + all;
  return true;
}

/// False: the socket has nothing now.
bool SessionReceiver::fill(const FileDescriptor& socket) {
  if (!socket.is_open() || bye_) return false;
  if (parse_ > 0) {
    std::memmove(bytes_.data(), bytes_.data() + parse_, end_ - parse_);
    end_ -= parse_;
    parse_ = ready_begin_ = ready_end_ = 0;
  }
  for (;;) {
    const ssize_t count =
        ::recv(socket.get(), bytes_.data() + end_, bytes_.size() - end_, MSG_DONTWAIT);
    if (count > 0) {
      end_ += static_cast<std::size_t>(count);
      return true;
    }
    if (count == 0) fail(ErrorCode::kUnavailable, "it closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail(ErrorCode::kUnavailable, std::strerror(errno));
  }
}

void SessionReceiver::restart() { parse_ = end_ = ready_end_; }

}  // namespace tutti::internal
