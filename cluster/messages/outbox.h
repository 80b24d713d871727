// What waits to be written to one stream of bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/cluster/messages/byte_stream.h"
#include "tutti/cluster/messages/operation.h"
#include "tutti/cluster/tcp/frame.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// A frame on its way out: header and head as a copy, the body in the caller's memory.
struct Outgoing final : Operation {
  Outgoing(const FrameHeader& header, std::span<const std::byte> head,
           std::span<const std::byte> body);
  std::size_t num_bytes() const { return front_bytes + body.size(); }
  /// The caller's memory is not needed after this.
  void own_body();

  std::array<std::byte, kFrameHeaderBytes + kLongestHead> front{};
  std::size_t front_bytes = 0;
  std::span<const std::byte> body;
  std::size_t written = 0;
  std::vector<std::byte> owned;
  bool is_owned = false;
  bool is_counted = false;
  bool is_awaited = false;   // its sender waits for the end
  std::uint64_t end_at = 0;  // in the stream, once it is written
};

/// Threads: any.
class Outbox {
 public:
  explicit Outbox(ByteStream& stream) : stream_(stream) {}

  /// Writes what the stream takes at once. True: it was alone and has ended, so nobody else has to
  /// be told.
  bool push(const std::shared_ptr<Outgoing>& message);
  /// Writes what the stream takes; returns whether that was anything.
  bool flush();
  /// Whether flush() has something to do.
  bool has_bytes() const { return has_bytes_.load(); }
  /// Ends messages whose memory the stream has returned. Whether flush() or this may end one.
  void end_returned();
  bool has_lent() const { return has_lent_.load(); }
  /// Its sender wants its memory back: what the stream still needs of it is copied.
  void take_back(const std::shared_ptr<Outgoing>& message);
  /// Whether all of it was written, and the stream may need its body again.
  bool is_lent(const std::shared_ptr<Outgoing>& message);
  /// See Work::move_body.
  void move_lent(const std::shared_ptr<Outgoing>& message, std::span<const std::byte> to,
                 const std::function<void()>& move);
  /// Not begun: removed. Begun: its rest is copied, for a frame cannot be left half written.
  void cancel(const std::shared_ptr<Outgoing>& message);
  /// Ends what is queued, and what comes later, with `reason`; kAborted replaces other reasons.
  void fail(const Error& reason);
  /// fail(), and tells the peer why.
  void abort(const Error& reason);
  TransportStats stats() const { return {messages_.load(), bytes_.load()}; }

 private:
  bool flush_locked() TUTTI_REQUIRES(mutex_);
  void fail_locked(const Error& reason) TUTTI_REQUIRES(mutex_);
  void finish(const std::shared_ptr<Outgoing>& message) TUTTI_REQUIRES(mutex_);
  void end_returned_locked() TUTTI_REQUIRES(mutex_);
  void take_back_all() TUTTI_REQUIRES(mutex_);
  void note_bytes() TUTTI_REQUIRES(mutex_) { has_bytes_ = !queue_.empty() && !is_broken_; }

  ByteStream& stream_;
  Mutex mutex_;
  std::deque<std::shared_ptr<Outgoing>> queue_ TUTTI_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Outgoing>> lent_ TUTTI_GUARDED_BY(mutex_);  // written, not returned
  std::uint64_t written_ TUTTI_GUARDED_BY(mutex_) = 0;                   // to the stream
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
  bool is_broken_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_bytes_{false};
  std::atomic<bool> has_lent_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace tutti::internal
