// Writing frames: header, head and body in one call of the stream. Their coding: numbers at fixed
// places, every field checked.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tutti/cluster/net/mailbox.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

// So much is written before the checksum of what comes next is made: it is on its way meanwhile.
constexpr std::size_t kCheckedAtOnce = std::size_t{256} << 10;

constexpr std::uint32_t kFrameMagic = 0x46747554;  // "TutF"
constexpr std::size_t kCheckedBytes = kFrameHeaderBytes - sizeof(std::uint32_t);

static_assert(std::endian::native == std::endian::little, "frames are copies of numbers");

template <class T>
void put(std::byte* place, T value) {
  std::memcpy(place, &value, sizeof(value));
}

template <class T>
T get(const std::byte* place) {
  T value{};
  std::memcpy(&value, place, sizeof(value));
  return value;
}

template <class... Parts>
[[noreturn]] void refuse_frame(const Parts&... parts) {
  fail(ErrorCode::kUnavailable,
       "the bytes in front of a message were damaged on the way, or are none of this protocol: ",
       parts...);
}

}  // namespace

// Bytes 0 magic, 4 kind, 5 nothing, 6 head, 8 tag, 16 body, 24 checksum.
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  put(&bytes[0], kFrameMagic);
  put(&bytes[4], static_cast<std::uint8_t>(header.kind));
  put(&bytes[6], header.head_bytes);
  put(&bytes[8], header.tag);
  put(&bytes[16], header.body_bytes);
  put(&bytes[kCheckedBytes], crc32c_of(std::span(bytes).first(kCheckedBytes)));
  return bytes;
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (const auto magic = get<std::uint32_t>(&bytes[0]); magic != kFrameMagic) {
    refuse_frame("expected the magic ", kFrameMagic, ", got ", magic);
  }
  const std::uint32_t expected = crc32c_of(bytes.first(kCheckedBytes));
  if (const auto crc = get<std::uint32_t>(&bytes[kCheckedBytes]); crc != expected) {
    refuse_frame("expected the checksum ", expected, ", got ", crc);
  }
  FrameHeader header;
  const auto kind = get<std::uint8_t>(&bytes[4]);
  const auto reserved = get<std::uint8_t>(&bytes[5]);
  header.kind = static_cast<FrameHeader::Kind>(kind);
  header.head_bytes = get<std::uint16_t>(&bytes[6]);
  header.tag = get<std::uint64_t>(&bytes[8]);
  header.body_bytes = get<std::uint64_t>(&bytes[16]);
  const bool is_abort = header.kind == FrameHeader::Kind::kAbort;
  if ((header.kind != FrameHeader::Kind::kMessage && !is_abort) || reserved != 0) {
    refuse_frame("expected kind 1 or 2 and 0, got ", int{kind}, " and ", int{reserved});
  }
  const std::size_t longest_head = is_abort ? 0 : kLongestHead;
  const std::uint64_t longest_body = is_abort ? kLongestAbortText : kLongestBody;
  if (header.head_bytes > longest_head || header.body_bytes > longest_body) {
    refuse_frame("expected head and body of at most ", longest_head, " and ", longest_body,
                 " bytes, got ", header.head_bytes, " and ", header.body_bytes);
  }
  return header;
}

std::array<std::byte, kFrameChecksumBytes> encode_checksum(std::uint32_t crc) {
  std::array<std::byte, kFrameChecksumBytes> bytes{};
  put(bytes.data(), crc);
  return bytes;
}

std::uint32_t decode_checksum(std::span<const std::byte, kFrameChecksumBytes> bytes) {
  return get<std::uint32_t>(bytes.data());
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

/// The checksum of what is written is made first, for it goes with the last bytes in one call.
std::optional<std::size_t> Outbox::write_rest(Outgoing& message) {
  std::array<iovec, 3> parts{};
  std::array<std::byte, kFrameChecksumBytes> checksum{};
  std::size_t num_parts = 0, skip = message.written;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped == bytes.size()) return;
    // Streams do not write to them, iovec cannot say so.
    parts[num_parts++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
  };
  add(std::span(message.front).first(message.front_bytes));
  std::size_t end = message.body.size();
  if (has_checksums_) {
    end = std::min(end, skip + kCheckedAtOnce);
    if (end > message.num_checked) {
      const auto next = message.body.subspan(message.num_checked, end - message.num_checked);
      message.crc = crc32c_of(next, message.crc);
      message.num_checked = end;
    }
  }
  add(message.body.first(end));
  if (has_checksums_ && end == message.body.size()) {
    checksum = encode_checksum(message.crc);
    add(checksum);
  }
  return stream_.write(std::span(parts).first(num_parts));
}

void Outbox::prepare(Outgoing& message) const {
  if (!has_checksums_) return;
  message.checksum_bytes = kFrameChecksumBytes;
  message.crc =
      crc32c_of(std::span(message.front).first(message.front_bytes).subspan(kFrameHeaderBytes));
}

bool Outbox::push(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  if (failure_) {
    message->end(failure_);
    return true;
  }
  prepare(*message);
  const bool was_alone = queue_.empty();
  queue_.push_back(message);
  flush_locked();
  note_bytes();
  return was_alone && queue_.empty();
}

bool Outbox::flush() {
  MutexLock lock(mutex_);
  const bool wrote = flush_locked();
  note_bytes();
  return wrote;
}

// A broken connection ends nothing here: the reader, who sees it too, first takes what the peer has
// said last (an abort's reason), and then fails both directions.
bool Outbox::flush_locked() {
  bool wrote = false;
  while (!queue_.empty() && !is_broken_) {
    Outgoing& message = *queue_.front();
    const std::optional<std::size_t> count = write_rest(message);
    is_broken_ = !count;
    if (count.value_or(0) == 0) break;
    wrote = true;
    message.written += *count;
    if (message.written < message.num_bytes()) continue;
    if (message.is_counted) {
      messages_.fetch_add(1);
      bytes_.fetch_add(message.front_bytes - kFrameHeaderBytes + message.body_bytes);
    }
    if (!message.has_ended()) message.end();  // an aborted one goes on to its last byte
    queue_.pop_front();
  }
  return wrote;
}

void Outbox::cancel(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(queue_, message);
  if (found == queue_.end()) return;
  if (message->written == 0) {
    queue_.erase(found);
  } else {
    message->own_body();
  }
  note_bytes();
}

void Outbox::fail(const Error& reason) {
  MutexLock lock(mutex_);
  fail_locked(reason);
  queue_.clear();
  note_bytes();
}

void Outbox::fail_locked(const Error& reason) {
  if (!failure_ ||
      (reason.code() == ErrorCode::kAborted && failure_->code() != ErrorCode::kAborted)) {
    failure_ = reason;
  }
  for (const auto& message : queue_) {
    if (!message->has_ended()) message->end(failure_);
  }
}

void Outbox::abort(const Error& reason) {
  MutexLock lock(mutex_);
  std::shared_ptr<Outgoing> begun;
  if (!queue_.empty() && queue_.front()->written > 0) begun = queue_.front();
  if (begun) begun->own_body();
  fail_locked(reason);
  queue_.clear();
  const std::string_view text = std::string_view(reason.message()).substr(0, kLongestAbortText);
  const FrameHeader header{FrameHeader::Kind::kAbort, 0, 0, text.size()};
  const auto last = std::make_shared<Outgoing>(header, std::span<const std::byte>(),
                                               std::as_bytes(std::span(text)));
  last->own_body();
  prepare(*last);
  if (begun) queue_.push_back(begun);
  queue_.push_back(last);
  flush_locked();
  note_bytes();
}

}  // namespace tutti::internal
