// Bytes in order to and from one peer, without blocking: what a mesh of ranks is made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/net/socket.h"

namespace tutti::internal {

class Segment;

/// One peer's bytes, both directions. Threads: read() and write() one thread at a time each, both
/// at once; the rest any.
class ByteStream {
 public:
  explicit ByteStream(std::string peer) : peer_(std::move(peer)) {}
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// How errors name the other side: "tcp: rank 2 (10.0.0.3:4711)", "shm: rank 2 (pid 4711)".
  const std::string& peer() const { return peer_; }

  /// What is there, into `places` one after the other, as far as they reach; 0: nothing now. Throws
  /// kUnavailable naming the peer once it is gone and all of its bytes were read.
  virtual std::size_t read(std::span<const iovec> places) = 0;
  /// As many bytes as there is room for; 0: none now. Nothing: the peer is gone, and read() says
  /// why after its last bytes.
  virtual std::optional<std::size_t> write(std::span<const iovec> parts) = 0;

  /// Appends what poll() has to look at so that a sleeping thread wakes when bytes come, or room
  /// (if `wants_room`).
  virtual void watch(std::vector<pollfd>& descriptors, bool wants_room) const = 0;
  /// poll() saw something of that.
  virtual void on_ready(std::span<const pollfd> /*descriptors*/) {}
  /// Whether the bytes go through memory that both processes map: then read() costs no system call,
  /// bytes may come without a descriptor's saying so, and none of them is damaged on the way.
  virtual bool is_memory() const { return false; }
  /// Before and after a sleep. False: bytes or room are there already.
  virtual bool begin_sleep(bool /*wants_room*/) { return true; }
  virtual void end_sleep() {}

  /// Called about once a second while a thread waits: notices a peer that is silent, so that read()
  /// throws.
  virtual void check_silence(TimePoint /*now*/) {}

  /// Whether the peer's system may lack some of what was written, which closing would lose.
  virtual bool has_unsent() const { return false; }
  /// The peer's read() ends after what was written.
  virtual void close() noexcept = 0;
  /// The same at once: what was written may be lost.
  virtual void reset() noexcept { close(); }

 private:
  const std::string peer_;
};

/// `socket` is connected. A connection that breaks stays broken: read() throws kUnavailable with
/// the system's reason. So it does when the machine or the link falls silent: for 5 s with nothing
/// under way (keep-alive), for 7 s with something that is not acknowledged. A peer that does not
/// read is not silent.
std::unique_ptr<ByteStream> tcp_stream(FileDescriptor socket, std::string peer);

/// Through the rings of two segments: `own` with the ring to the peer, `peer` with that to this
/// rank. `socket` is local and connected; `name` is the peer()'s.
std::unique_ptr<ByteStream> ring_stream(std::shared_ptr<const Segment> own,
                                        std::shared_ptr<const Segment> peer, FileDescriptor socket,
                                        std::string name);

}  // namespace tutti::internal
