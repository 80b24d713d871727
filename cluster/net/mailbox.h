// Messages between ranks: their frames, what comes from one stream of bytes, and what waits to be
// written to it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// In front of every message. Behind it come the head and the body; over TCP then the CRC32C of
/// both (4 bytes). Numbers are little-endian on the wire.
struct FrameHeader {
  enum class Kind : std::uint8_t {
    kMessage = 1,
    kAbort = 2,  // no head; the body is the reason's text
  };
  Kind kind = Kind::kMessage;
  std::uint16_t head_bytes = 0;
  std::uint64_t tag = 0;
  std::uint64_t body_bytes = 0;
  bool operator==(const FrameHeader&) const = default;
};
inline constexpr std::size_t kFrameHeaderBytes = 28;
inline constexpr std::size_t kFrameChecksumBytes = 4;
inline constexpr std::size_t kLongestHead = 256;
inline constexpr std::uint64_t kLongestBody = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kLongestAbortText = 1 << 16;
/// With a checksum of its own, so that no length is believed that was damaged on the way.
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header);
/// Throws kUnavailable for bytes that are no header: magic, checksum, kind, lengths beyond the
/// limits. The connection cannot be used any more.
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

std::array<std::byte, kFrameChecksumBytes> encode_checksum(std::uint32_t crc);
std::uint32_t decode_checksum(std::span<const std::byte, kFrameChecksumBytes> bytes);

/// A send or receive: what its Work waits for. Belongs to an Inbox or Outbox, whose mutex guards
/// all but the end.
struct Operation {
  virtual ~Operation() = default;
  std::uint64_t tag = 0;
  std::size_t body_bytes = 0;

  /// Once. Afterwards no memory of the caller is touched.
  void end(std::optional<Error> reason = std::nullopt) {
    error_ = std::move(reason);
    ended_.store(true);  // seq_cst: see Mesh::tell_waiters
  }
  bool has_ended() const { return ended_.load(); }
  /// Of an operation that has ended.
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
  std::atomic<bool> ended_{false};
};

/// A recv().
struct Incoming final : Operation {
  std::span<std::byte> head;
  std::span<std::byte> body;
};

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

/// Bytes of messages that came before their receiver, of all connections of a rank.
struct KeptBytes {
  explicit KeptBytes(std::size_t limit) : limit(limit) {}
  const std::size_t limit;
  std::atomic<std::size_t> now{0};
};

/// Memory for such a message; the last block of middle size is used again, for fresh pages cost
/// more than the bytes that they hold. One thread at a time.
class KeptBlocks {
 public:
  std::unique_ptr<std::byte[]> take(std::size_t bytes);
  void give_back(std::unique_ptr<std::byte[]> block, std::size_t bytes);

 private:
  std::unique_ptr<std::byte[]> spare_;
  std::size_t spare_bytes_ = 0;
};

/// Threads: any.
class Inbox {
 public:
  Inbox(ByteStream& stream, KeptBytes& kept);

  struct News {
    bool moved = false;            // something was read
    std::optional<Error> failure;  // the connection has ended; nothing will be read any more
    std::optional<Error> abort;    // the peer has aborted the group
  };
  /// Reads what is there, a few MiB at most: bodies straight into the memory of their receiver.
  News read();
  /// Its message may be there already.
  void post(const std::shared_ptr<Incoming>& receiver);
  /// Its memory is not touched afterwards.
  void cancel(const std::shared_ptr<Incoming>& receiver);
  /// Ends who waits, and who comes later and finds no message, with `reason`. kAborted replaces
  /// other reasons, and drops the messages.
  void fail(const Error& reason);

 private:
  /// A message of which the header and the head were read.
  struct Message {
    FrameHeader header;
    std::array<std::byte, kLongestHead> head{};
    std::shared_ptr<Incoming> receiver;  // may come later
    std::unique_ptr<std::byte[]> kept;   // the body, where there is no receiver
    std::byte* target = nullptr;         // of the body; null: it is dropped
    std::size_t arrived = 0;             // of the body
    std::uint32_t crc = 0;               // of the head and what has arrived
    bool has_body() const { return arrived == header.body_bytes; }
  };
  using Messages = std::list<std::shared_ptr<Message>>;

  std::size_t read_bytes(std::size_t& wanted) TUTTI_REQUIRES(mutex_);
  void take_staged(News& news) TUTTI_REQUIRES(mutex_);
  std::size_t take_front(std::size_t at) TUTTI_REQUIRES(mutex_);
  void check_message(std::size_t at) TUTTI_REQUIRES(mutex_);
  void begin_message(const FrameHeader& header, const std::byte* head) TUTTI_REQUIRES(mutex_);
  void keep_body(Message& message) TUTTI_REQUIRES(mutex_);
  void finish_message(News& news) TUTTI_REQUIRES(mutex_);
  void attach(Message& message, const std::shared_ptr<Incoming>& receiver) TUTTI_REQUIRES(mutex_);
  void end_receiver(Message& message) TUTTI_REQUIRES(mutex_);
  void release_body(Message& message) TUTTI_REQUIRES(mutex_);

  static constexpr std::size_t kStagedBytes = 16384;

  ByteStream& stream_;
  KeptBytes& kept_;
  const bool has_checksums_;
  Mutex mutex_;
  std::list<std::shared_ptr<Incoming>> receivers_ TUTTI_GUARDED_BY(mutex_);
  Messages messages_ TUTTI_GUARDED_BY(mutex_);  // without receiver
  std::shared_ptr<Message> reading_ TUTTI_GUARDED_BY(mutex_);
  KeptBlocks blocks_ TUTTI_GUARDED_BY(mutex_);
  std::array<std::byte, kStagedBytes> staged_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_staged_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
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
