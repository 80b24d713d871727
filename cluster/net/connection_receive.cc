// Reading frames, and finding the receiver of each message.
// SPDX-License-Identifier: Apache-2.0
//
// Bytes go to one of two places: a body whose header was seen goes to its *target* (the receiver's
// memory, or memory of the connection when there is no receiver yet); everything else to the
// *staged* bytes, from which headers, heads and small bodies are taken. One call of the system
// fills both, so many small messages cost one call, and a large body is not copied.
#include "cluster/net/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/crc32c.h"

namespace tutti::internal {
namespace {

// Then others have their turn.
constexpr std::size_t kReadAtOnce = std::size_t{4} << 20;
// Where a body goes that nobody wants.
constexpr std::size_t kDroppedAtOnce = std::size_t{64} << 10;

std::span<std::byte> dropped_bytes() {
  thread_local std::vector<std::byte> bytes(kDroppedAtOnce);
  return bytes;
}

}  // namespace

void Connection::read(News& news) {
  for (std::size_t total = 0; total < kReadAtOnce;) {
    std::size_t wanted = 0, count = 0;
    try {
      count = read_bytes(wanted);
    } catch (const Error& error) {
      const bool is_within = reading_ || num_staged_ > 0;
      news.failure = Error(error.code(), error.message() + (is_within ? " within a message" : ""));
      return;
    }
    if (count == 0) return;
    news.moved = true;
    total += count;
    try {
      take_staged(news);
    } catch (const Error& error) {
      news.failure = Error(error.code(), concat(peer_, ": ", error.message()));
      return;
    }
    if (news.abort || count < wanted) return;
  }
}

/// One call of the system; num_staged_ and reading_->arrived then say where the bytes are.
std::size_t Connection::read_bytes(std::size_t& wanted) {
  std::array<iovec, 2> places{};
  std::size_t num_places = 0;
  std::span<std::byte> body;
  if (reading_) {
    const std::size_t left = reading_->header.body_bytes - reading_->arrived;
    body = reading_->target
               ? std::span(reading_->target + reading_->arrived, std::min(left, kReadAtOnce))
               : dropped_bytes().first(std::min(left, kDroppedAtOnce));
    places[num_places++] = {body.data(), body.size()};
  }
  const bool reaches_end =
      !reading_ || reading_->arrived + body.size() == reading_->header.body_bytes;
  const std::size_t room = reaches_end ? kStagedBytes - num_staged_ : 0;
  if (room > 0) places[num_places++] = {staged_.data() + num_staged_, room};
  wanted = body.size() + room;
  const std::size_t count = read_socket(std::span(places).first(num_places));
  const std::size_t to_body = std::min(count, body.size());
  if (reading_) {
    reading_->arrived += to_body;
    if (!is_local_) reading_->crc = crc32c_of(body.first(to_body), reading_->crc);
  }
  num_staged_ += count - to_body;
  return count;
}

void Connection::take_staged(News& news) {
  std::size_t at = 0;
  for (;;) {
    const std::size_t left = num_staged_ - at;
    if (reading_) {
      const std::size_t behind = is_local_ ? 0 : kFrameChecksumBytes;
      if (!reading_->has_body() || left < behind) break;
      if (!is_local_) check_message(at);
      at += behind;
      finish_message(news);
      continue;
    }
    const std::size_t front = take_front(at);
    if (front == 0) break;
    at += front;
    const std::size_t body = std::min<std::size_t>(reading_->header.body_bytes, num_staged_ - at);
    if (reading_->target && body > 0) std::memcpy(reading_->target, &staged_[at], body);
    if (!is_local_) {
      reading_->crc = crc32c_of(std::as_bytes(std::span(staged_)).subspan(at, body), reading_->crc);
    }
    reading_->arrived = body;
    at += body;
  }
  num_staged_ -= at;
  if (at > 0 && num_staged_ > 0) std::memmove(staged_.data(), staged_.data() + at, num_staged_);
}

/// Begins the message whose header and head are at `at`, and returns their length; 0: not complete.
std::size_t Connection::take_front(std::size_t at) {
  const auto bytes = std::span<const std::byte>(staged_).subspan(at, num_staged_ - at);
  if (bytes.size() < kFrameHeaderBytes) return 0;
  const FrameHeader header = decode_frame_header(bytes.first<kFrameHeaderBytes>());
  const std::size_t front = kFrameHeaderBytes + header.head_bytes;
  if (bytes.size() < front) return 0;
  begin_message(header, bytes.data() + kFrameHeaderBytes);
  if (!is_local_) {
    reading_->crc = crc32c_of(bytes.subspan(kFrameHeaderBytes, header.head_bytes));
  }
  return front;
}

void Connection::check_message(std::size_t at) {
  std::uint32_t expected = 0;
  std::memcpy(&expected, &staged_[at], sizeof(expected));
  if (expected == reading_->crc) return;
  tutti::fail(ErrorCode::kUnavailable, "the message with tag ", reading_->header.tag, " (body of ",
              reading_->header.body_bytes, " bytes) was damaged on the way: expected the checksum ",
              expected, ", got ", reading_->crc);
}

void Connection::begin_message(const FrameHeader& header, const std::byte* head) {
  reading_ = std::make_shared<Message>();
  reading_->header = header;
  if (header.head_bytes > 0) std::memcpy(reading_->head.data(), head, header.head_bytes);
  if (header.kind == FrameHeader::Kind::kAbort) {
    keep_body(*reading_);
    return;
  }
  const auto found =
      std::ranges::find(receivers_, header.tag, [](const auto& r) { return r->tag; });
  if (found != receivers_.end()) {
    const std::shared_ptr<Incoming> receiver = *found;
    receivers_.erase(found);
    attach(*reading_, receiver);
    return;
  }
  keep_body(*reading_);
  messages_kept_.push_back(reading_);
}

void Connection::keep_body(Message& message) {
  const std::size_t bytes = message.header.body_bytes;
  if (bytes == 0) return;
  if (kept_.now.fetch_add(bytes) + bytes > kept_.limit) {
    kept_.now.fetch_sub(bytes);
    tutti::fail(ErrorCode::kResourceExhausted,
                "it sends messages that nobody receives; expected at most ", kept_.limit,
                " bytes to be kept, got ", bytes, " more with tag ", message.header.tag);
  }
  message.kept = BufferRef::allocate(bytes);  // of the allocator's cache: fresh pages cost more
  message.target = message.kept->data();
}

void Connection::release_body(Message& message) {
  if (!message.kept) return;
  kept_.now.fetch_sub(message.header.body_bytes);
  message.kept = {};
}

void Connection::finish_message(News& news) {
  const std::shared_ptr<Message> message = std::exchange(reading_, nullptr);
  if (message->header.kind == FrameHeader::Kind::kAbort) {
    news.abort = Error(
        ErrorCode::kAborted,
        std::string(reinterpret_cast<const char*>(message->target), message->header.body_bytes));
    release_body(*message);
  } else if (message->receiver) {
    end_receiver(*message);
  }
}

/// From now on the message goes to `receiver`, as far as it fits.
void Connection::attach(Message& message, const std::shared_ptr<Incoming>& receiver) {
  message.receiver = receiver;
  const std::size_t head = std::min<std::size_t>(message.header.head_bytes, receiver->head.size());
  if (head > 0) std::memcpy(receiver->head.data(), message.head.data(), head);
  const bool fits = message.header.head_bytes == receiver->head.size() &&
                    message.header.body_bytes == receiver->body.size();
  message.target = fits ? receiver->body.data() : nullptr;
  if (fits && message.arrived > 0) {
    std::memcpy(message.target, message.kept->data(), message.arrived);
  }
  release_body(message);
  if (&message != reading_.get()) end_receiver(message);  // all of it is here
}

void Connection::end_receiver(Message& message) {
  const std::shared_ptr<Incoming> receiver = std::exchange(message.receiver, nullptr);
  const FrameHeader& header = message.header;
  if (header.head_bytes == receiver->head.size() && header.body_bytes == receiver->body.size()) {
    receiver->end();
    return;
  }
  receiver->end(Error(ErrorCode::kInvalidArgument,
                      concat(peer_, ": the message with tag ", header.tag,
                             " has another length; expected head and body of ",
                             receiver->head.size(), " and ", receiver->body.size(), " bytes, got ",
                             header.head_bytes, " and ", header.body_bytes)));
}

void Connection::receive(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(messages_kept_, receiver->tag, [](const auto& m) { return m->header.tag; });
  if (found != messages_kept_.end()) {
    const std::shared_ptr<Message> message = *found;
    messages_kept_.erase(found);
    attach(*message, receiver);
    return;
  }
  if (failure_) {
    receiver->end(failure_);
  } else {
    receivers_.push_back(receiver);
  }
}

void Connection::cancel(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  std::erase(receivers_, receiver);
  if (!reading_ || reading_->receiver != receiver) return;
  reading_->receiver = nullptr;
  reading_->target = nullptr;
}

}  // namespace tutti::internal
