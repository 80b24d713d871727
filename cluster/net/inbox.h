// Reads one stream of bytes and brings messages and receivers together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/frame.h"
#include "tutti/cluster/net/operation.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A recv().
struct Incoming final : Operation {
  std::span<std::byte> head;
  std::span<std::byte> body;
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
  /// `peer` is how errors name the other side: "tcp: rank 2 (127.0.0.1:4711)".
  Inbox(ByteStream& stream, std::string peer, KeptBytes& kept);

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
  const std::string peer_;
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

}  // namespace tutti::internal
