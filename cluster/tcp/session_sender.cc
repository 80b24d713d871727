// Making and writing chunks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/cluster/tcp/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {

std::array<std::span<std::byte>, 2> SessionSender::places(std::uint64_t offset, std::size_t count) {
  const std::size_t begin = offset & (kRoom - 1);
  const std::size_t first = std::min(count, kRoom - begin);
  return {std::span(bytes_).subspan(begin, first), std::span(bytes_).first(count - first)};
}

std::size_t SessionSender::take(std::span<const iovec> parts) {
  if (bytes_.empty()) bytes_.resize(kRoom);
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const std::size_t count = std::min<std::size_t>(part.iov_len, kRoom - (taken_ - acked_));
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    const auto [first, second] = places(taken_, count);
    if (!first.empty()) std::memcpy(first.data(), from, first.size());
    if (!second.empty()) std::memcpy(second.data(), from + first.size(), second.size());
    taken_ += count;
    total += count;
    if (count < part.iov_len) break;
  }
  return total;
}

void SessionSender::begin_chunk(ChunkHeader::Kind kind, std::uint64_t ack) {
  chunk_ = {.kind = kind, .offset = sent_, .ack = ack};
  if (kind == ChunkHeader::Kind::kData) {
    chunk_.length =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(taken_ - sent_, kLongestChunk));
    const auto [first, second] = places(sent_, chunk_.length);
    chunk_.payload_crc = crc32c_of(second, crc32c_of(first));
  }
  header_ = encode(chunk_);
  chunk_written_ = 0;
  in_chunk_ = true;
  ack_said_ = ack;
}

/// False: the socket is full.
bool SessionSender::write_chunk(const FileDescriptor& socket) {
  const std::size_t all = kChunkHeaderBytes + chunk_.length;
  while (chunk_written_ < all) {
    std::array<iovec, 3> parts{};
    std::size_t num_parts = 0, skip = chunk_written_;
    const auto add = [&](std::span<std::byte> bytes) {
      const std::size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      if (skipped < bytes.size()) {
        parts[num_parts++] = {bytes.data() + skipped, bytes.size() - skipped};
      }
    };
    add(header_);
    for (const std::span<std::byte> place : places(chunk_.offset, chunk_.length)) add(place);
    msghdr call{};
    call.msg_iov = parts.data();
    call.msg_iovlen = num_parts;
    const ssize_t count = ::sendmsg(socket.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      chunk_written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      return false;
    } else if (errno != EINTR) {
      fail(ErrorCode::kUnavailable, std::strerror(errno));
    }
  }
  return true;
}

void SessionSender::push(const FileDescriptor& socket, std::uint64_t ack) {
  for (;;) {
    if (in_chunk_) {
      if (!write_chunk(socket)) return;
      sent_ += chunk_.length;
      in_chunk_ = false;
    }
    if (sent_ < taken_) {
      begin_chunk(ChunkHeader::Kind::kData, ack);
    } else if (std::exchange(bye_due_, false)) {
      begin_chunk(ChunkHeader::Kind::kBye, ack);
    } else if (owes_ack(ack)) {
      begin_chunk(ChunkHeader::Kind::kAck, ack);
    } else {
      return;
    }
  }
}

void SessionSender::forget(std::uint64_t acked) {
  acked_ = std::max(acked_, std::min(acked, sent_));
}

void SessionSender::restart(std::uint64_t received) {
  if (received < acked_ || received > taken_) {
    fail(ErrorCode::kDataLoss, "tcp: a peer that connects again says that it has ", received,
         " bytes; expected ", acked_, " to ", taken_);
  }
  acked_ = sent_ = received;
  in_chunk_ = false;
  ack_said_ = 0;
}

}  // namespace tutti::internal
