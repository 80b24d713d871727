// Reading frames, and finding the receiver of each message.
// SPDX-License-Identifier: Apache-2.0
//
// Bytes go to one of two places: a body whose header was seen goes to its *target* (the receiver's
// memory, or memory of the inbox when there is no receiver yet); everything else to the *staged*
// bytes, from which headers, heads and small bodies are taken. One call of the stream fills both,
// so a stream of small messages costs one call for many, and a large body is not copied.
#include "tutti/cluster/net/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

// Then others have their turn.
constexpr std::size_t kReadAtOnce = std::size_t{4} << 20;
// Smaller blocks are cheap to get, larger ones too much to hold on to.
constexpr std::size_t kLeastSpare = std::size_t{32} << 10, kMostSpare = std::size_t{1} << 20;
// Where a body goes that nobody wants.
constexpr std::size_t kDroppedAtOnce = std::size_t{64} << 10;

std::span<std::byte> dropped_bytes() {
  thread_local std::vector<std::byte> bytes(kDroppedAtOnce);
  return bytes;
}

}  // namespace

std::unique_ptr<std::byte[]> KeptBlocks::take(std::size_t bytes) {
  if (bytes >= kLeastSpare && bytes <= spare_bytes_) {
    spare_bytes_ = 0;
    return std::move(spare_);
  }
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

/// `bytes`: what was asked for, which may be less than there is.
void KeptBlocks::give_back(std::unique_ptr<std::byte[]> block, std::size_t bytes) {
  if (bytes < kLeastSpare || bytes > kMostSpare || bytes < spare_bytes_) return;
  spare_ = std::move(block);
  spare_bytes_ = bytes;
}

Inbox::Inbox(ByteStream& stream, KeptBytes& kept)
    : stream_(stream), kept_(kept), has_checksums_(!stream.is_memory()) {}

Inbox::News Inbox::read() {
  News news;
  MutexLock lock(mutex_);
  if (failure_) return news;  // its place in the stream is lost
  for (std::size_t total = 0; total < kReadAtOnce;) {
    std::size_t wanted = 0, count = 0;
    try {
      count = read_bytes(wanted);
    } catch (const Error& error) {
      const bool is_within = reading_ || num_staged_ > 0;
      news.failure = Error(error.code(), error.message() + (is_within ? " within a message" : ""));
      return news;
    }
    if (count == 0) break;
    news.moved = true;
    total += count;
    try {
      take_staged(news);
    } catch (const Error& error) {
      news.failure = Error(error.code(), concat(stream_.peer(), ": ", error.message()));
      return news;
    }
    if (news.abort || count < wanted) break;
  }
  return news;
}

/// One call of the stream; num_staged_ and reading_->arrived then say where the bytes are.
std::size_t Inbox::read_bytes(std::size_t& wanted) {
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
  const std::size_t count = stream_.read(std::span(places).first(num_places));
  const std::size_t to_body = std::min(count, body.size());
  if (reading_) {
    reading_->arrived += to_body;
    if (has_checksums_) reading_->crc = crc32c_of(body.first(to_body), reading_->crc);
  }
  num_staged_ += count - to_body;
  return count;
}

void Inbox::take_staged(News& news) {
  std::size_t at = 0;
  for (;;) {
    const std::size_t left = num_staged_ - at;
    if (reading_) {
      const std::size_t behind = has_checksums_ ? kFrameChecksumBytes : 0;
      if (!reading_->has_body() || left < behind) break;
      if (has_checksums_) check_message(at);
      at += behind;
      finish_message(news);
      continue;
    }
    const std::size_t front = take_front(at);
    if (front == 0) break;
    at += front;
    const std::size_t body = std::min<std::size_t>(reading_->header.body_bytes, num_staged_ - at);
    if (reading_->target && body > 0) std::memcpy(reading_->target, &staged_[at], body);
    if (has_checksums_) {
      reading_->crc = crc32c_of(std::as_bytes(std::span(staged_)).subspan(at, body), reading_->crc);
    }
    reading_->arrived = body;
    at += body;
  }
  num_staged_ -= at;
  if (at > 0 && num_staged_ > 0) std::memmove(staged_.data(), staged_.data() + at, num_staged_);
}

/// Begins the message whose header and head are at `at`, and returns their length; 0: not complete.
std::size_t Inbox::take_front(std::size_t at) {
  const auto bytes = std::span<const std::byte>(staged_).subspan(at, num_staged_ - at);
  if (bytes.size() < kFrameHeaderBytes) return 0;
  const FrameHeader header = decode_frame_header(bytes.first<kFrameHeaderBytes>());
  const std::size_t front = kFrameHeaderBytes + header.head_bytes;
  if (bytes.size() < front) return 0;
  begin_message(header, bytes.data() + kFrameHeaderBytes);
  if (has_checksums_) {
    reading_->crc = crc32c_of(bytes.subspan(kFrameHeaderBytes, header.head_bytes));
  }
  return front;
}

void Inbox::check_message(std::size_t at) {
  const auto bytes = std::span<const std::byte>(staged_).subspan(at).first<kFrameChecksumBytes>();
  const std::uint32_t expected = decode_checksum(bytes);
  if (expected == reading_->crc) return;
  tutti::fail(ErrorCode::kUnavailable, "the message with tag ", reading_->header.tag, " (body of ",
              reading_->header.body_bytes, " bytes) was damaged on the way: expected the checksum ",
              expected, ", got ", reading_->crc);
}

void Inbox::begin_message(const FrameHeader& header, const std::byte* head) {
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
  messages_.push_back(reading_);
}

void Inbox::keep_body(Message& message) {
  const std::size_t bytes = message.header.body_bytes;
  if (bytes == 0) return;
  if (kept_.now.fetch_add(bytes) + bytes > kept_.limit) {
    kept_.now.fetch_sub(bytes);
    tutti::fail(ErrorCode::kResourceExhausted,
                "it sends messages that nobody receives; expected at most ", kept_.limit,
                " bytes to be kept, got ", bytes, " more with tag ", message.header.tag);
  }
  message.kept = blocks_.take(bytes);
  message.target = message.kept.get();
}

void Inbox::release_body(Message& message) {
  if (!message.kept) return;
  kept_.now.fetch_sub(message.header.body_bytes);
  blocks_.give_back(std::move(message.kept), message.header.body_bytes);
}

void Inbox::finish_message(News& news) {
  const std::shared_ptr<Message> message = std::exchange(reading_, nullptr);
  if (message->header.kind == FrameHeader::Kind::kAbort) {
    news.abort =
        Error(ErrorCode::kAborted, std::string(reinterpret_cast<const char*>(message->kept.get()),
                                               message->header.body_bytes));
    release_body(*message);
  } else if (message->receiver) {
    end_receiver(*message);
  }
}

/// From now on the message goes to `receiver`, as far as it fits.
void Inbox::attach(Message& message, const std::shared_ptr<Incoming>& receiver) {
  message.receiver = receiver;
  const std::size_t head = std::min<std::size_t>(message.header.head_bytes, receiver->head.size());
  if (head > 0) std::memcpy(receiver->head.data(), message.head.data(), head);
  const bool fits = message.header.head_bytes == receiver->head.size() &&
                    message.header.body_bytes == receiver->body.size();
  message.target = fits ? receiver->body.data() : nullptr;
  if (fits && message.arrived > 0) {
    std::memcpy(message.target, message.kept.get(), message.arrived);
  }
  release_body(message);
  if (&message != reading_.get()) end_receiver(message);  // all of it is here
}

void Inbox::end_receiver(Message& message) {
  const std::shared_ptr<Incoming> receiver = std::exchange(message.receiver, nullptr);
  const FrameHeader& header = message.header;
  if (header.head_bytes == receiver->head.size() && header.body_bytes == receiver->body.size()) {
    receiver->end();
    return;
  }
  receiver->end(Error(ErrorCode::kInvalidArgument,
                      concat(stream_.peer(), ": the message with tag ", header.tag,
                             " has another length; expected head and body of ",
                             receiver->head.size(), " and ", receiver->body.size(), " bytes, got ",
                             header.head_bytes, " and ", header.body_bytes)));
}

void Inbox::post(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(messages_, receiver->tag, [](const auto& m) { return m->header.tag; });
  if (found != messages_.end()) {
    const std::shared_ptr<Message> message = *found;
    messages_.erase(found);
    attach(*message, receiver);
    return;
  }
  if (failure_) {
    receiver->end(failure_);
  } else {
    receivers_.push_back(receiver);
  }
}

void Inbox::cancel(const std::shared_ptr<Incoming>& receiver) {
  MutexLock lock(mutex_);
  std::erase(receivers_, receiver);
  if (!reading_ || reading_->receiver != receiver) return;
  reading_->receiver = nullptr;
  reading_->target = nullptr;
}

void Inbox::fail(const Error& reason) {
  MutexLock lock(mutex_);
  const bool is_abort = reason.code() == ErrorCode::kAborted;
  if (!failure_ || (is_abort && failure_->code() != ErrorCode::kAborted)) failure_ = reason;
  if (reading_) {  // it will not be complete
    std::erase(messages_, reading_);
    if (reading_->receiver) reading_->receiver->end(failure_);
    release_body(*reading_);
    reading_ = nullptr;
  }
  if (is_abort) {
    for (const auto& message : messages_) release_body(*message);
    messages_.clear();
  }
  for (const auto& receiver : receivers_) receiver->end(failure_);
  receivers_.clear();
}

}  // namespace tutti::internal
