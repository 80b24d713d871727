// Reading chunks, and putting them in their order.
// SPDX-License-Identifier: Apache-2.0
//
// A peer gives its chunks to its connections one after the other, so on each of them offsets grow,
// and the next chunk of the stream is the first one of some connection: nothing is copied but to
// its receiver. Only what is sent again, because a connection broke, comes behind later chunks;
// then these are set aside. What the peer sends twice (it cannot know what had arrived) has the
// same borders, and is dropped.
//
// A long chunk whose turn it is *lands*: once its header is there, its payload is read to where its
// receiver wants it. Its checksum is compared afterwards, and its bytes count only then; a landing
// that fails it, or is torn, is forgotten, and the same bytes land again. So that headers are seen
// before what follows them, little is read where a long chunk may begin.
#include "tutti/cluster/tcp/session_receiver.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/cluster/tcp/session_sender.h"
#include "tutti/core/crc32c.h"

namespace tutti::internal {

namespace {

// A chunk of which less is to come is not worth a call of its own.
constexpr std::size_t kWorthLanding = std::size_t{8} << 10;
// After such a chunk others like it are expected.
constexpr std::size_t kLong = kLongPart;
// After a landing: what stands before the next message, and the header of the chunk after it.
constexpr std::size_t kAfterLanding = 512;

}  // namespace

void SessionReceiver::Lane::drop_head() {
  if (place) {
    place = nullptr;
  } else {
    begin += kChunkHeaderBytes + head->length;
  }
  head.reset();
}

/// Makes the payload at `place` one that was read to `bytes`.
void SessionReceiver::Lane::put_back() {
  const auto header = encode(landing ? *landing : *head);
  const std::size_t front = header.size() + landed;
  std::memmove(bytes.data() + front, bytes.data() + begin, end - begin);
  std::ranges::copy(header, bytes.begin());
  if (landed > 0) std::memcpy(bytes.data() + header.size(), place, landed);
  end = front + (end - begin);
  begin = 0;
  landing.reset();
  place = nullptr;
}

void SessionReceiver::leave() {
  aim_ = {};
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (!lane.place) continue;
    if (i == ready_lane_ && ready_.empty()) {  // all was given
      ready_lane_ = kNone;
      lane.drop_head();
      continue;
    }
    lane.put_back();
    if (i == ready_lane_) ready_ = lane.payload().last(ready_.size());
  }
}

std::size_t SessionReceiver::give(std::span<const iovec> places) {
  std::size_t total = 0;
  for (const iovec& place : places) {
    for (std::size_t filled = 0; filled < place.iov_len;) {
      if (ready_.empty() && !next_ready()) return total;
      const std::size_t count = std::min(place.iov_len - filled, ready_.size());
      std::byte* const to = static_cast<std::byte*>(place.iov_base) + filled;
      if (to != ready_.data()) std::memcpy(to, ready_.data(), count);
      ready_ = ready_.subspan(count);
      filled += count;
      total += count;
    }
  }
  return total;
}

bool SessionReceiver::next_ready() {
  if (ready_lane_ != kNone) lanes_[std::exchange(ready_lane_, kNone)].drop_head();
  for (std::size_t i = 0; given_ == received_ && i < lanes_.size(); ++i) {
    if (!next_in_order(lanes_[i])) continue;
    // The same bytes may be landing from another connection, which was slower.
    if (!lanes_[i].place) leave();
    ready_ = lanes_[i].payload();
    ready_lane_ = i;
    given_ = received_ += ready_.size();
    return true;
  }
  early_.erase(early_.begin(), early_.lower_bound(given_));  // a lane had them, too
  const auto found = early_.find(given_);
  if (found == early_.end()) return false;
  leave();
  ready_bytes_ = std::move(found->second);
  early_.erase(found);
  ready_ = ready_bytes_;
  given_ += ready_.size();
  received_ = std::max(received_, given_);
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
  if (lane.landing) return take_landed(lane);
  if (lane.end - lane.begin < kChunkHeaderBytes) return false;
  const auto bytes = std::span<const std::byte>(lane.bytes).subspan(lane.begin);
  const ChunkHeader header = decode_chunk_header(bytes.first<kChunkHeaderBytes>());
  lane.whole = kChunkHeaderBytes + header.length;
  if (lane.end - lane.begin < lane.whole) return false;
  lane.whole = 0;
  if (header.length >= kLong) lane.look = kShortLook;
  take_over(lane, header, bytes.subspan(kChunkHeaderBytes, header.length));
  return true;
}

bool SessionReceiver::take_landed(Lane& lane) {
  if (lane.landed < lane.landing->length) return false;
  const ChunkHeader header = *std::exchange(lane.landing, std::nullopt);
  const std::span<const std::byte> payload(std::exchange(lane.place, nullptr), header.length);
  take_over(lane, header, payload);
  lane.place = const_cast<std::byte*>(payload.data());
  return true;
}

/// Throws kDataLoss for a payload that is not what was sent.
void SessionReceiver::take_over(Lane& lane, const ChunkHeader& header,
                                std::span<const std::byte> payload) {
  if (crc32c_of(payload) != header.payload_crc) {
    fail(ErrorCode::kDataLoss, "tcp: a chunk of ", header.length, " bytes was damaged");
  }
  if (header.kind != ChunkHeader::Kind::kAck) check_place(header);
  acked_ = std::max(acked_, header.ack);
  if (header.kind == ChunkHeader::Kind::kBye) bye_at_ = header.offset;
  lane.head = header;
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
  const bool is_in_use = ready_lane_ != kNone;
  if (!socket.is_open() || is_in_use || has_bye() || lane.failure) return false;
  if (lane.bytes.empty()) lane.bytes.resize(kRoom);
  if (lane.begin > 0) {
    std::memmove(lane.bytes.data(), lane.bytes.data() + lane.begin, lane.end - lane.begin);
    lane.end -= std::exchange(lane.begin, 0);
  }
  if (!lane.landing && !lane.head) begin_landing(lane);
  while (lane.end < lane.bytes.size()) {
    if (receive(lane, socket)) return true;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      lane.failure.emplace(ErrorCode::kUnavailable,
                           errno == 0 ? "it closed the connection" : std::strerror(errno));
    }
    return false;
  }
  return false;
}

/// False: errno says why; 0: it was closed.
bool SessionReceiver::receive(Lane& lane, const FileDescriptor& socket) {
  std::array<iovec, 2> places{};
  const std::size_t to_land = lane.landing ? lane.landing->length - lane.landed : 0;
  const std::size_t rest = lane.whole - std::min(lane.whole, lane.end);
  const std::size_t wanted = to_land > 0 ? kAfterLanding : std::max(lane.look, rest);
  if (to_land > 0) places[0] = {lane.place + lane.landed, to_land};
  places[1] = {lane.bytes.data() + lane.end, std::min(wanted, lane.bytes.size() - lane.end)};
  msghdr call{};
  call.msg_iov = to_land > 0 ? places.data() : &places[1];
  call.msg_iovlen = to_land > 0 ? 2 : 1;
  errno = 0;
  const ssize_t count = ::recvmsg(socket.get(), &call, MSG_DONTWAIT);
  if (count <= 0) return false;
  const std::size_t landed = std::min(to_land, static_cast<std::size_t>(count));
  lane.landed += landed;
  lane.end += static_cast<std::size_t>(count) - landed;
  if (to_land > 0) glance_behind(lane);
  // Many short chunks: the next call takes more of them.
  if (to_land == 0 && static_cast<std::size_t>(count) == wanted) {
    lane.look = std::min(2 * lane.look, kRoom);
  }
  return true;
}

/// What the chunk after one that lands acknowledges may free the memory for its own payload.
void SessionReceiver::glance_behind(const Lane& lane) {
  if (lane.end < kChunkHeaderBytes) return;
  try {
    const auto bytes = std::span<const std::byte>(lane.bytes).first<kChunkHeaderBytes>();
    acked_ = std::max(acked_, decode_chunk_header(bytes).ack);
  } catch (const Error&) {
    // It is found again in its turn.
  }
}

bool SessionReceiver::may_land(const Lane& lane, const ChunkHeader& header) const {
  return header.kind == ChunkHeader::Kind::kData && header.offset == received_ &&
         header.length <= aim_.size() &&
         std::ranges::none_of(lanes_, [](const Lane& other) { return other.place != nullptr; }) &&
         kChunkHeaderBytes + header.length >= lane.end - lane.begin + kWorthLanding;
}

/// When the lane begins with a part of a chunk whose receiver is known.
void SessionReceiver::begin_landing(Lane& lane) {
  if (aim_.empty() || lane.end - lane.begin < kChunkHeaderBytes) return;
  const auto bytes = std::span<const std::byte>(lane.bytes).subspan(lane.begin);
  // give() has found no fault with it.
  const ChunkHeader header = decode_chunk_header(bytes.first<kChunkHeaderBytes>());
  if (!may_land(lane, header)) return;
  lane.landing = header;
  lane.place = aim_.data();
  lane.landed = lane.end - lane.begin - kChunkHeaderBytes;
  if (lane.landed > 0) std::memcpy(lane.place, &bytes[kChunkHeaderBytes], lane.landed);
  lane.begin = lane.end = lane.whole = 0;
  lane.look = kShortLook;
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

bool SessionReceiver::keep() {
  keep_ready();
  for (Lane& lane : lanes_) {
    while (has_head(lane)) {
      if (lane.head->offset >= received_ && lane.head->length > 0) keep_early(lane);
      lane.drop_head();
      count_kept();
    }
  }
  return received_ - given_ < session_window(lanes_.size());
}

/// Of what is given now the rest, so that its lane can be read on.
void SessionReceiver::keep_ready() {
  if (ready_lane_ == kNone) return;
  ready_bytes_.assign(ready_.begin(), ready_.end());
  ready_ = ready_bytes_;
  lanes_[std::exchange(ready_lane_, kNone)].drop_head();
}

void SessionReceiver::count_kept() {
  for (auto next = early_.find(received_); next != early_.end() && next->first == received_;
       ++next) {
    received_ += next->second.size();
  }
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
  lane.landing.reset();
  if (ready_lane_ == connection) {  // it counts as received
    lane.end = lane.begin + (lane.place ? 0 : kChunkHeaderBytes + lane.head->length);
    return;
  }
  lane.begin = lane.end = lane.whole = 0;
  lane.place = nullptr;
  lane.head.reset();
}

}  // namespace tutti::internal
