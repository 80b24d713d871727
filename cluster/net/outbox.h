// What waits to be written to one stream of bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/frame.h"
#include "tutti/cluster/net/operation.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// A frame on its way out: header and head as a copy, the body in the caller's memory.
struct Outgoing final : Operation {
  Outgoing(const FrameHeader& header, std::span<const std::byte> head,
           std::span<const std::byte> body);
  std::size_t num_bytes() const { return front_bytes + body.size() + checksum_bytes; }
  /// The caller's memory is not needed after this.
  void own_body();

  std::array<std::byte, kFrameHeaderBytes + kLongestHead> front{};
  std::size_t front_bytes = 0;
  std::span<const std::byte> body;
  std::size_t checksum_bytes = 0;  // behind the body
  std::uint32_t crc = 0;           // of the head and the first `num_checked` bytes of the body
  std::size_t num_checked = 0;
  std::size_t written = 0;
  std::vector<std::byte> owned;
  bool is_owned = false;
  bool is_counted = false;
};

/// Threads: any.
class Outbox {
 public:
  explicit Outbox(ByteStream& stream) : stream_(stream), has_checksums_(!stream.is_memory()) {}

  /// Writes what the stream takes at once. True: it was alone and has ended, so nobody else has to
  /// be told.
  bool push(const std::shared_ptr<Outgoing>& message);
  /// Writes what the stream takes; returns whether that was anything.
  bool flush();
  /// Whether flush() has something to do.
  bool has_bytes() const { return has_bytes_.load(); }
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
  void prepare(Outgoing& message) const;
  std::optional<std::size_t> write_rest(Outgoing& message) TUTTI_REQUIRES(mutex_);
  void note_bytes() TUTTI_REQUIRES(mutex_) { has_bytes_ = !queue_.empty() && !is_broken_; }

  ByteStream& stream_;
  const bool has_checksums_;
  Mutex mutex_;
  std::deque<std::shared_ptr<Outgoing>> queue_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
  bool is_broken_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_bytes_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace tutti::internal
