// Writing frames: header, head and body in one call of the stream. Their coding: numbers at fixed
// places, every field checked.
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cluster/net/connection.h"
#include "cluster/net/socket.h"
#include "core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

// So much is written before the checksum of what comes next is made: it is on its way meanwhile.
constexpr std::size_t kCheckedAtOnce = std::size_t{256} << 10;

constexpr std::uint32_t kFrameMagic = 0x46747554;  // "TutF"
static_assert(std::endian::native == std::endian::little, "frames are copies of numbers");
struct [[gnu::packed]] FrameOnTheWire {
  std::uint32_t magic = kFrameMagic;
  FrameHeader::Kind kind = FrameHeader::Kind::kMessage;
  std::uint8_t reserved = 0;
  std::uint16_t head_bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t body_bytes = 0;
  std::uint32_t crc = 0;  // of all before it

  std::uint32_t expected_crc() const {
    return crc32c_of(std::as_bytes(std::span(this, 1)).first(sizeof(*this) - sizeof(crc)));
  }
};
static_assert(sizeof(FrameOnTheWire) == kFrameHeaderBytes);

template <class... Parts>
[[noreturn]] void refuse_frame(const Parts&... parts) {
  fail(ErrorCode::kUnavailable,
       "the bytes in front of a message were damaged on the way, or are none of this protocol: ",
       parts...);
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  FrameOnTheWire wire{.kind = header.kind,
                      .head_bytes = header.head_bytes,
                      .tag = header.tag,
                      .body_bytes = header.body_bytes};
  wire.crc = wire.expected_crc();
  return std::bit_cast<std::array<std::byte, kFrameHeaderBytes>>(wire);
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  FrameOnTheWire wire;
  std::memcpy(static_cast<void*>(&wire), bytes.data(), sizeof(wire));
  if (wire.magic != kFrameMagic) {
    refuse_frame("expected the magic ", kFrameMagic, ", got ", +wire.magic);
  }
  if (wire.crc != wire.expected_crc()) {
    refuse_frame("expected the checksum ", wire.expected_crc(), ", got ", +wire.crc);
  }
  const FrameHeader header{wire.kind, wire.head_bytes, wire.tag, wire.body_bytes};
  const bool is_abort = header.kind == FrameHeader::Kind::kAbort;
  if ((header.kind != FrameHeader::Kind::kMessage && !is_abort) || wire.reserved != 0) {
    refuse_frame("expected kind 1 or 2 and 0, got ", static_cast<int>(header.kind), " and ",
                 +wire.reserved);
  }
  const std::size_t longest_head = is_abort ? 0 : kLongestHead;
  const std::uint64_t longest_body = is_abort ? kLongestAbortText : kLongestBody;
  if (header.head_bytes > longest_head || header.body_bytes > longest_body) {
    refuse_frame("expected head and body of at most ", longest_head, " and ", longest_body,
                 " bytes, got ", header.head_bytes, " and ", header.body_bytes);
  }
  return header;
}

Outgoing::Outgoing(const FrameHeader& header, std::span<const std::byte> head,
                   std::span<const std::byte> body)
    : body(body) {
  tag = header.tag;
  body_bytes = body.size();
  is_counted = header.kind == FrameHeader::Kind::kMessage;
  const auto encoded = encode(header);
  std::memcpy(front.data(), encoded.data(), encoded.size());
  if (!head.empty()) std::memcpy(front.data() + encoded.size(), head.data(), head.size());
  front_bytes = encoded.size() + head.size();
}

void Outgoing::own_body() {
  if (std::exchange(is_owned, true)) return;
  const std::size_t gone = std::min(written - std::min(written, front_bytes), body.size());
  owned.assign(body.begin() + static_cast<std::ptrdiff_t>(gone), body.end());
  body = owned;
  // What is left of the body is all of it now.
  written -= gone;
  num_checked -= std::min(num_checked, gone);
}

std::size_t Connection::num_bytes(const Outgoing& message) const {
  return message.front_bytes + message.body.size() + (is_local_ ? 0 : kFrameChecksumBytes);
}

/// Whether it wrote something. The checksum of what is written is made first, for it goes with the
/// last bytes in one call.
bool Connection::write_rest(Outgoing& message) {
  std::array<iovec, 3> parts{};
  msghdr call{};
  call.msg_iov = parts.data();
  std::size_t skip = message.written;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped == bytes.size()) return;
    // The system does not write to them, iovec cannot say so.
    parts[call.msg_iovlen++] = {const_cast<std::byte*>(bytes.data()) + skipped,
                                bytes.size() - skipped};
  };
  add(std::span(message.front).first(message.front_bytes));
  std::size_t end = message.body.size();
  if (!is_local_) {
    end = std::min(end, skip + kCheckedAtOnce);
    if (end > message.num_checked) {
      const auto next = message.body.subspan(message.num_checked, end - message.num_checked);
      message.crc = crc32c_of(next, message.crc);
      message.num_checked = end;
    }
  }
  add(message.body.first(end));
  if (!is_local_ && end == message.body.size()) {
    add(std::as_bytes(std::span(&message.crc, 1)));
  }
  const ssize_t count = ::sendmsg(socket_.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) message.written += static_cast<std::size_t>(count);
  is_broken_ = count < 0 && !is_only_later(errno);
  return count > 0;
}

void Connection::queue(const std::shared_ptr<Outgoing>& message) {
  if (!is_local_) {
    message->crc =
        crc32c_of(std::span(message->front).first(message->front_bytes).subspan(kFrameHeaderBytes));
  }
  queue_.push_back(message);
}

bool Connection::send(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  if (failure_) {
    message->end(failure_);
    return true;
  }
  const bool was_alone = queue_.empty();
  queue(message);
  flush_locked();
  return was_alone && queue_.empty();
}

bool Connection::flush() {
  MutexLock lock(mutex_);
  return flush_locked();
}

// A broken connection ends nothing here: the reader, who sees it too, first takes what the peer has
// said last (an abort's reason), and then fails both directions.
bool Connection::flush_locked() {
  bool wrote = false;
  while (!queue_.empty() && !is_broken_) {
    Outgoing& message = *queue_.front();
    if (!write_rest(message)) break;
    wrote = true;
    if (message.written < num_bytes(message)) continue;
    if (message.is_counted) {
      messages_.fetch_add(1);
      bytes_.fetch_add(message.front_bytes - kFrameHeaderBytes + message.body_bytes);
    }
    if (!message.has_ended()) message.end();  // an aborted one goes on to its last byte
    queue_.pop_front();
  }
  has_bytes_ = !queue_.empty() && !is_broken_;
  return wrote;
}

void Connection::cancel(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(queue_, message);
  if (found == queue_.end()) return;
  if (message->written > 0) {
    message->own_body();
  } else {
    queue_.erase(found);
  }
  has_bytes_ = !queue_.empty() && !is_broken_;
}

}  // namespace tutti::internal
