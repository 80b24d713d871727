// Writing frames: header, head and body in one call of the stream.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/core/crc32c.h"

namespace tutti::internal {
namespace {

// So much is written before the checksum of what comes next is made: it is on its way meanwhile.
constexpr std::size_t kCheckedAtOnce = std::size_t{256} << 10;

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
