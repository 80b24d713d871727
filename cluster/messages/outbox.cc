// Writing frames: header, head and body in one call of the stream.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/messages/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::internal {
namespace {

std::optional<std::size_t> write_rest(ByteStream& stream, const Outgoing& message) {
  std::array<iovec, 2> parts{};
  std::size_t num_parts = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    // Streams do not write to them, iovec cannot say so.
    if (!bytes.empty()) parts[num_parts++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  if (message.written < message.front_bytes) {
    add(std::span(message.front).first(message.front_bytes).subspan(message.written));
  }
  const std::size_t body_written = message.written - std::min(message.written, message.front_bytes);
  add(message.body.subspan(body_written));
  const auto used = std::span(parts).first(num_parts);
  return message.is_owned ? stream.write(used) : stream.lend(used);
}

}  // namespace

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
  const std::size_t gone = written - std::min(written, front_bytes);
  owned.assign(body.begin() + static_cast<std::ptrdiff_t>(gone), body.end());
  body = owned;
  // What is left of the body is all of it now.
  written = std::min(written, front_bytes);
}

bool Outbox::push(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  if (failure_) {
    message->end(failure_);
    return true;
  }
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
    if (message.written < message.num_bytes()) {
      const std::optional<std::size_t> count = write_rest(stream_, message);
      is_broken_ = !count;
      if (count.value_or(0) == 0) break;
      wrote = true;
      message.written += *count;
      written_ += *count;
      if (message.written < message.num_bytes()) continue;
    }
    if (!stream_.flush()) break;
    wrote = true;
    if (message.is_counted) {
      messages_.fetch_add(1);
      bytes_.fetch_add(message.front_bytes - kFrameHeaderBytes + message.body_bytes);
    }
    finish(queue_.front());
    queue_.pop_front();
  }
  return wrote;
}

/// All of it was written.
void Outbox::finish(const std::shared_ptr<Outgoing>& message) {
  if (message->has_ended()) return;
  message->end_at = written_;
  if (message->is_awaited) stream_.take_back(written_);
  if (stream_.all_returned(written_)) {
    message->end();
    return;
  }
  lent_.push_back(message);
  has_lent_ = true;
}

void Outbox::end_returned() {
  MutexLock lock(mutex_);
  end_returned_locked();
}

void Outbox::end_returned_locked() {
  while (!lent_.empty() && stream_.all_returned(lent_.front()->end_at)) {
    lent_.front()->end();
    lent_.pop_front();
  }
  has_lent_ = !lent_.empty();
}

void Outbox::take_back(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  message->is_awaited = true;
  if (std::ranges::find(lent_, message) == lent_.end()) return;
  stream_.take_back(message->end_at);
  end_returned_locked();
}

bool Outbox::is_lent(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  return std::ranges::find(lent_, message) != lent_.end();
}

void Outbox::move_lent(const std::shared_ptr<Outgoing>& message, std::span<const std::byte> to,
                       const std::function<void()>& move) {
  MutexLock lock(mutex_);
  stream_.move_lent(message->end_at, to, move);
}

void Outbox::take_back_all() {
  stream_.take_back(written_);
  end_returned_locked();
}

void Outbox::cancel(const std::shared_ptr<Outgoing>& message) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(queue_, message);
  if (found == queue_.end() || message->written > 0) take_back_all();
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
  take_back_all();
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
  if (begun) queue_.push_back(begun);
  queue_.push_back(last);
  flush_locked();
  note_bytes();
}

}  // namespace tutti::internal
