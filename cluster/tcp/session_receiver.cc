// Reading chunks, and putting them in their order.
// SPDX-License-Identifier: Apache-2.0
//
// A peer gives its chunks to its connections one after the other, so on each of them offsets grow,
// and the next chunk of the stream is the first one of some connection: nothing is copied but to
// its receiver. Only what is sent again, because a connection broke, comes behind later chunks;
// then these are set aside. What the peer sends twice (it cannot know what had arrived) has the
// same borders, and is dropped.
#include "tutti/cluster/tcp/session_receiver.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/cluster/tcp/crc32c.h"
#include "tutti/cluster/tcp/session_sender.h"

namespace tutti::internal {

void SessionReceiver::Lane::drop_head() {
  begin += kChunkHeaderBytes + head->length;
  head.reset();
}

std::size_t SessionReceiver::give(std::span<const iovec> places) {
  std::size_t total = 0;
  for (const iovec& place : places) {
    for (std::size_t filled = 0; filled < place.iov_len;) {
      if (ready_.empty() && !next_ready()) return total;
      const std::size_t count = std::min(place.iov_len - filled, ready_.size());
      std::memcpy(static_cast<std::byte*>(place.iov_base) + filled, ready_.data(), count);
      ready_ = ready_.subspan(count);
      filled += count;
      total += count;
    }
  }
  return total;
}

bool SessionReceiver::next_ready() {
  if (ready_lane_ != kNone) lanes_[std::exchange(ready_lane_, kNone)].drop_head();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!next_in_order(lanes_[i])) continue;
    ready_ = lanes_[i].payload();
    ready_lane_ = i;
    received_ += ready_.size();
    return true;
  }
  early_.erase(early_.begin(), early_.lower_bound(received_));  // a lane had them, too
  const auto found = early_.find(received_);
  if (found == early_.end()) return false;
  ready_bytes_ = std::move(found->second);
  early_.erase(found);
  ready_ = ready_bytes_;
  received_ += ready_.size();
  return true;
}

/// Whether the lane begins with the next bytes of the stream; drops what it has twice.
bool SessionReceiver::next_in_order(Lane& lane) {
  while (has_head(lane) && !is_early(lane)) {
    if (lane.head->offset == received_ && lane.head->length > 0) return true;
    lane.drop_head();
  }
  return false;
}

/// Whether the lane begins with a chunk of data that is complete; takes what the others say.
bool SessionReceiver::has_head(Lane& lane) {
  if (lane.failure) return false;
  try {
    while (!lane.head) {
      if (!take_head(lane)) return false;
      if (lane.head->kind == ChunkHeader::Kind::kData) break;
      lane.drop_head();
    }
    // Another lane may have brought some of it since.
    check_place(*lane.head);
    return true;
  } catch (const Error& error) {
    lane.failure = error;
    lane.head.reset();
    return false;
  }
}

/// False: the next chunk is not complete.
bool SessionReceiver::take_head(Lane& lane) {
  if (lane.end - lane.begin < kChunkHeaderBytes) return false;
  const auto bytes = std::span<const std::byte>(lane.bytes).subspan(lane.begin);
  const ChunkHeader header = decode_chunk_header(bytes.first<kChunkHeaderBytes>());
  if (lane.end - lane.begin < kChunkHeaderBytes + header.length) return false;
  if (crc32c_of(bytes.subspan(kChunkHeaderBytes, header.length)) != header.payload_crc) {
    fail(ErrorCode::kDataLoss, "tcp: a chunk of ", header.length, " bytes was damaged");
  }
  if (header.kind != ChunkHeader::Kind::kAck) check_place(header);
  acked_ = std::max(acked_, header.ack);
  if (header.kind == ChunkHeader::Kind::kBye) {
    bye_at_ = header.offset;
    lane.has_ended = true;
  }
  lane.head = header;
  return true;
}

void SessionReceiver::check_place(const ChunkHeader& header) const {
  const std::uint64_t end = header.offset + header.length;
  const bool is_next = header.offset == received_;
  const bool is_old = header.offset < received_ && end <= received_;
  const bool is_early =
      header.offset > received_ && end <= received_ + session_window(lanes_.size());
  if (is_next || (lanes_.size() > 1 && (is_old || is_early))) return;
  fail(ErrorCode::kDataLoss, "tcp: a chunk is missing; expected byte ", received_, ", got ",
       header.offset, " to ", end);
}

/// False: the socket has nothing now, or the lane has no room.
bool SessionReceiver::fill(std::size_t connection, const FileDescriptor& socket) {
  Lane& lane = lanes_[connection];
  if (!socket.is_open() || !is_given() || lane.has_ended || lane.failure) return false;
  if (lane.bytes.empty()) lane.bytes.resize(kRoom);
  if (lane.begin > 0) {
    std::memmove(lane.bytes.data(), lane.bytes.data() + lane.begin, lane.end - lane.begin);
    lane.end -= std::exchange(lane.begin, 0);
  }
  while (lane.end < lane.bytes.size()) {
    const ssize_t count = ::recv(socket.get(), lane.bytes.data() + lane.end,
                                 lane.bytes.size() - lane.end, MSG_DONTWAIT);
    if (count > 0) {
      lane.end += static_cast<std::size_t>(count);
      return true;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    lane.failure.emplace(ErrorCode::kUnavailable,
                         count == 0 ? "it closed the connection" : std::strerror(errno));
    return false;
  }
  return false;
}

bool SessionReceiver::set_aside() {
  bool was_any = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (i == ready_lane_) continue;  // its head is being given
    while (has_head(lanes_[i]) && is_early(lanes_[i])) {
      keep_early(lanes_[i]);
      lanes_[i].drop_head();
      was_any = true;
    }
  }
  return was_any;
}

/// Once; of others only their borders are known, so none may lie over another.
void SessionReceiver::keep_early(const Lane& lane) {
  const std::uint64_t begin = lane.head->offset, end = begin + lane.head->length;
  const auto after = early_.lower_bound(begin);
  const bool is_free_before =
      after == early_.begin() || std::prev(after)->first + std::prev(after)->second.size() <= begin;
  if (!is_free_before || (after != early_.end() && after->first < end)) return;
  const auto payload = lane.payload();
  early_.emplace_hint(after, begin, std::vector<std::byte>(payload.begin(), payload.end()));
}

bool SessionReceiver::has_gap() const {
  return !early_.empty() ||
         std::ranges::any_of(lanes_, [this](const Lane& l) { return is_early(l); });
}

const Error* SessionReceiver::failure(std::size_t connection) const {
  const std::optional<Error>& failure = lanes_[connection].failure;
  return failure ? &*failure : nullptr;
}

void SessionReceiver::restart(std::size_t connection) {
  Lane& lane = lanes_[connection];
  lane.failure.reset();
  lane.has_ended = false;
  if (ready_lane_ == connection) {  // it counts as received
    lane.end = lane.begin + kChunkHeaderBytes + lane.head->length;
    return;
  }
  lane.begin = lane.end = 0;
  lane.head.reset();
}

}  // namespace tutti::internal
