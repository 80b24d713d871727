// Connection to one peer: messages in frames, and their delivery to receivers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

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

#include "core/file.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// Header of every message. The head, the body and, over TCP, the CRC32C of both (4 bytes) follow
/// it. Numbers are little-endian on the wire.
struct FrameHeader {
  enum class Kind : std::uint8_t {
    kMessage = 1,
    kAbort = 2,  // no head; the body is the text of the reason
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
/// Encodes a header with its own checksum, so that a corrupted length is detected.
std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header);
/// Decodes a header. Throws kUnavailable if the magic number, checksum, kind or lengths are
/// invalid; the connection cannot be used afterwards.
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// A send or receive that a Work waits for. The connection's mutex guards all members except
/// ended_.
struct Operation {
  std::uint64_t tag = 0;
  std::size_t body_bytes = 0;

  /// Ends the operation. Called once; the caller's memory is not accessed afterwards.
  void end(std::optional<Error> reason = std::nullopt) {
    error_ = std::move(reason);
    ended_.store(true);  // seq_cst: see mesh.cc
  }
  bool has_ended() const { return ended_.load(); }
  /// Returns the error that ended the operation; nullopt after success. Requires: has_ended().
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
  std::atomic<bool> ended_{false};
};

struct Incoming final : Operation {
  std::span<std::byte> head;
  std::span<std::byte> body;
};

/// An outgoing frame: header and head as a copy, the body in the caller's memory.
struct Outgoing final : Operation {
  Outgoing(const FrameHeader& header, std::span<const std::byte> head,
           std::span<const std::byte> body);
  /// Copies the unwritten bytes of the body; the caller's memory is not needed afterwards.
  void own_body();

  std::array<std::byte, kFrameHeaderBytes + kLongestHead> front{};
  std::size_t front_bytes = 0;
  std::span<const std::byte> body;
  std::uint32_t crc = 0;  // checksum of the header and the first `num_checked` bytes of the body
  std::size_t num_checked = 0;
  std::size_t written = 0;
  std::vector<std::byte> owned;
  bool is_owned = false;
  bool is_counted = false;
};

/// Total size, in bytes, of a rank's messages that arrived before their receives were posted.
struct KeptBytes {
  explicit KeptBytes(std::size_t limit) : limit(limit) {}
  const std::size_t limit;
  std::atomic<std::size_t> now{0};
};

/// Socket that is connected to another rank of the group.
struct ConnectedPeer {
  FileDescriptor socket = {};
  std::string address = {};         // for messages; "pid 4711" for a local peer
  bool is_local = false;            // true if the peer is a process on this host
  bool is_on_this_machine = false;  // true if the peer shares this machine's cores
  FileDescriptor memory = {};       // segment of a local peer
};

/// Bidirectional connection to one peer: TCP between hosts, a UNIX-domain socket within a host.
/// Local messages have no checksum, because their bytes cannot be corrupted. No function waits. A
/// connection that breaks, falls silent or delivers an invalid message stays broken. Thread-safe.
class Connection {
 public:
  /// `socket` must be connected. `is_local` is true if the peer is a process on this host. `peer`
  /// names the other side in errors: "tcp: rank 2 (10.0.0.3:4711)".
  Connection(FileDescriptor socket, std::string peer, bool is_local, KeptBytes& kept);
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& peer() const { return peer_; }
  /// Returns true if bytes may still be read.
  bool is_open() const { return is_open_.load(); }

  /// Queues the message and writes what the system accepts immediately. Returns true if the queue
  /// was empty and the whole message was written, in which case no thread needs a notification.
  bool send(const std::shared_ptr<Outgoing>& message);
  /// Starts a receive; the message may already have arrived.
  void receive(const std::shared_ptr<Incoming>& receiver);
  /// Cancels an operation; its memory is not accessed afterwards. The unwritten part of a partly
  /// written message is copied first, because a frame must be completed.
  void cancel(const std::shared_ptr<Outgoing>& message);
  void cancel(const std::shared_ptr<Incoming>& receiver);

  struct IoResult {
    bool moved = false;            // true if bytes were read or written
    std::optional<Error> failure;  // reason why the connection ended; no more bytes will be read
    std::optional<Error> abort;    // set if the peer has aborted the group
  };
  /// Writes as much as the system accepts, and reads the available bytes, at most a few MiB. Reads
  /// bodies directly into the memory of their receivers.
  IoResult move();
  /// Writes as many bytes as the system accepts; returns true if bytes were written.
  bool flush();
  /// Returns true if flush() has bytes to write.
  bool has_bytes() const { return has_bytes_.load(); }
  /// Returns the events that must wake a sleeping thread: incoming bytes, and room for queued
  /// bytes.
  pollfd watched() const;

  /// Detects a silent machine or link, after which move() fails. Called about once a second while a
  /// thread waits, by one thread at a time. The limit is 7 s if bytes are unacknowledged; on an
  /// idle connection, keep-alive detects a loss within 5 s. A peer that merely does not read is not
  /// considered silent. Within a host, detects that the peer's process has exited even if its child
  /// keeps the socket open.
  void check_silence(TimePoint now);
  /// Returns true if the peer's system may not have received all written bytes. The remaining bytes
  /// may be lost if this process exits.
  bool has_unsent() const;

  /// Ends all operations with `reason`, as well as later receives for which no message has arrived.
  /// kAborted replaces other reasons and drops received messages.
  void fail(const Error& reason);
  /// Same as fail() with kAborted, but also queues the reason for the peer; flush() finishes
  /// sending it.
  void abort(const Error& reason);
  /// Closes the connection; the peer reads end-of-file after the written bytes.
  void close() noexcept;
  /// Closes the connection immediately; written bytes may be lost.
  void reset() noexcept;

  TransportStats stats() const { return {messages_.load(), bytes_.load()}; }

 private:
  /// A message whose frame header and head have been read.
  struct Message {
    FrameHeader header;
    std::array<std::byte, kLongestHead> head{};
    std::shared_ptr<Incoming> receiver;  // null until a receive is posted
    BufferRef kept;                      // the body of a message without a receiver
    std::byte* target = nullptr;         // memory for the body; null if the body is dropped
    std::size_t arrived = 0;             // received bytes of the body
    std::uint32_t crc = 0;               // checksum of the header and the bytes received so far
    bool has_body() const { return arrived == header.body_bytes; }
  };

  std::size_t read_socket(std::span<const iovec> places);
  void fail_locked(const Error& reason) TUTTI_REQUIRES(mutex_);

  void read(IoResult& result) TUTTI_REQUIRES(mutex_);
  std::size_t read_bytes(std::size_t& wanted) TUTTI_REQUIRES(mutex_);
  void consume_staged(IoResult& result) TUTTI_REQUIRES(mutex_);
  std::size_t take_front(std::size_t at) TUTTI_REQUIRES(mutex_);
  void check_message(std::size_t at) TUTTI_REQUIRES(mutex_);
  void begin_message(const FrameHeader& header, const std::byte* head) TUTTI_REQUIRES(mutex_);
  void keep_body(Message& message) TUTTI_REQUIRES(mutex_);
  void finish_message(IoResult& result) TUTTI_REQUIRES(mutex_);
  void attach(Message& message, const std::shared_ptr<Incoming>& receiver) TUTTI_REQUIRES(mutex_);
  void end_receiver(Message& message) TUTTI_REQUIRES(mutex_);
  void release_body(Message& message) TUTTI_REQUIRES(mutex_);

  bool flush_locked() TUTTI_REQUIRES(mutex_);
  void queue(const std::shared_ptr<Outgoing>& message) TUTTI_REQUIRES(mutex_);
  bool write_rest(Outgoing& message) TUTTI_REQUIRES(mutex_);
  std::size_t num_bytes(const Outgoing& message) const;

  static constexpr std::size_t kStagedBytes = 16384;

  const FileDescriptor socket_;
  const std::string peer_;
  const bool is_local_;
  const FileDescriptor process_;  // process of a local peer; invalid for remote peers
  KeptBytes& kept_;
  std::atomic<bool> is_open_{true};
  std::atomic<bool> is_silent_{false};
  std::atomic<bool> has_bytes_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
  // State of check_silence().
  std::uint64_t acked_ = 0;
  TimePoint checked_at_, stuck_since_;

  Mutex mutex_;
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Incoming>> receivers_ TUTTI_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Message>> messages_kept_ TUTTI_GUARDED_BY(mutex_);  // without receivers
  std::shared_ptr<Message> reading_ TUTTI_GUARDED_BY(mutex_);
  std::array<std::byte, kStagedBytes> staged_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_staged_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Outgoing>> queue_ TUTTI_GUARDED_BY(mutex_);
  bool is_broken_ TUTTI_GUARDED_BY(mutex_) = false;  // true after a write error
};

}  // namespace tutti::internal
