// The connection to one peer: messages in frames, and how each finds its receiver.
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

/// A send or receive: what its Work waits for. The connection's mutex guards all but the end.
struct Operation {
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
  /// The caller's memory is not needed after this.
  void own_body();

  std::array<std::byte, kFrameHeaderBytes + kLongestHead> front{};
  std::size_t front_bytes = 0;
  std::span<const std::byte> body;
  std::uint32_t crc = 0;  // of the head and the first `num_checked` bytes of the body
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

/// A socket that is connected to a rank of the group.
struct ConnectedPeer {
  FileDescriptor socket = {};
  std::string address = {};         // of the peer, for messages; "pid 4711" of a local one
  bool is_local = false;            // see Connection
  bool is_on_this_machine = false;  // it shares its cores
  FileDescriptor memory = {};       // of a local peer: its segment
};

/// One peer, both directions: over TCP between hosts, over a UNIX-domain socket within one, where
/// no byte is damaged on the way and messages have no checksum. Nothing here waits. A connection
/// that breaks, falls silent or brings what is no message stays broken. Threads: any.
class Connection {
 public:
  /// `socket` is connected; `is_local`: to a process of this host. `peer`: how errors name the
  /// other side, "tcp: rank 2 (10.0.0.3:4711)".
  Connection(FileDescriptor socket, std::string peer, bool is_local, KeptBytes& kept);
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& peer() const { return peer_; }
  /// Whether something may still be read.
  bool is_open() const { return is_open_.load(); }

  /// Writes what the system takes at once. True: it was alone and has ended, so nobody else has to
  /// be told.
  bool send(const std::shared_ptr<Outgoing>& message);
  /// Its message may be there already.
  void receive(const std::shared_ptr<Incoming>& receiver);
  /// Their memory is not touched afterwards. Of a message that has begun the rest is copied, for a
  /// frame cannot be left half written.
  void cancel(const std::shared_ptr<Outgoing>& message);
  void cancel(const std::shared_ptr<Incoming>& receiver);

  struct News {
    bool moved = false;            // something was read or written
    std::optional<Error> failure;  // the connection has ended; nothing will be read any more
    std::optional<Error> abort;    // the peer has aborted the group
  };
  /// Writes what there is room for and reads what is there, a few MiB at most: bodies straight into
  /// the memory of their receiver.
  News move();
  /// Writes; returns whether that was anything.
  bool flush();
  /// Whether flush() has something to do.
  bool has_bytes() const { return has_bytes_.load(); }
  /// What poll() has to look at so that a sleeping thread wakes when bytes come, or room for those
  /// that wait.
  pollfd watched() const;

  /// Called about once a second while a thread waits: notices that the machine or the link has
  /// fallen silent, so that move() fails: for 7 s with something that is not acknowledged (with
  /// nothing under way keep-alive notices it, in 5 s). A peer that does not read is not silent.
  /// Within the host: that the process has ended while a child of it keeps the socket open. One
  /// thread at a time.
  void check_silence(TimePoint now);
  /// Whether the peer's system may lack some of what was written, which closing would lose.
  bool has_unsent() const;

  /// Ends what is under way, and what comes later and finds no message, with `reason`. kAborted
  /// replaces other reasons, and drops the messages.
  void fail(const Error& reason);
  /// The same with kAborted, and tells the peer why; flush() does the rest.
  void abort(const Error& reason);
  /// The peer's end comes behind what was written.
  void close() noexcept;
  /// The same at once: what was written may be lost.
  void reset() noexcept;

  TransportStats stats() const { return {messages_.load(), bytes_.load()}; }

 private:
  /// A message of which the header and the head were read.
  struct Message {
    FrameHeader header;
    std::array<std::byte, kLongestHead> head{};
    std::shared_ptr<Incoming> receiver;  // may come later
    BufferRef kept;                      // the body, where there is no receiver
    std::byte* target = nullptr;         // of the body; null: it is dropped
    std::size_t arrived = 0;             // of the body
    std::uint32_t crc = 0;               // of the head and what has arrived
    bool has_body() const { return arrived == header.body_bytes; }
  };

  // The socket, and how it ends.
  std::size_t read_socket(std::span<const iovec> places);
  void fail_locked(const Error& reason) TUTTI_REQUIRES(mutex_);

  // Receiving.
  void read(News& news) TUTTI_REQUIRES(mutex_);
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

  // Sending.
  bool flush_locked() TUTTI_REQUIRES(mutex_);
  void queue(const std::shared_ptr<Outgoing>& message) TUTTI_REQUIRES(mutex_);
  bool write_rest(Outgoing& message) TUTTI_REQUIRES(mutex_);
  std::size_t num_bytes(const Outgoing& message) const;

  static constexpr std::size_t kStagedBytes = 16384;

  const FileDescriptor socket_;
  const std::string peer_;
  const bool is_local_;
  const FileDescriptor process_;  // the peer's, where it is local
  KeptBytes& kept_;
  std::atomic<bool> is_open_{true};
  std::atomic<bool> is_silent_{false};
  std::atomic<bool> has_bytes_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
  // Of the thread that looks for silence.
  std::uint64_t acked_ = 0;
  TimePoint checked_at_, stuck_since_;

  Mutex mutex_;
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Incoming>> receivers_ TUTTI_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Message>> messages_kept_ TUTTI_GUARDED_BY(mutex_);  // no receiver
  std::shared_ptr<Message> reading_ TUTTI_GUARDED_BY(mutex_);
  std::array<std::byte, kStagedBytes> staged_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_staged_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Outgoing>> queue_ TUTTI_GUARDED_BY(mutex_);
  bool is_broken_ TUTTI_GUARDED_BY(mutex_) = false;  // for writing
};

}  // namespace tutti::internal
