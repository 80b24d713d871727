// Bytes in order to and from one peer, without blocking: what a mesh of ranks is made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tutti/core/clock.h"

namespace tutti::internal {

/// What went wrong and was repaired.
struct StreamCounters {
  std::uint64_t reconnects = 0;
  std::uint64_t damaged_chunks = 0;
};

/// One peer's bytes, both directions. Threads: read() and write() one thread at a time each, both
/// at once; the rest any.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// What is there, into `places` one after the other, as far as they reach; 0: nothing now. Throws
  /// kUnavailable naming the peer once it is gone and all of its bytes were read; kDataLoss.
  virtual std::size_t read(std::span<const iovec> places) = 0;
  /// The same, and behind the bytes that it counts others may lie in the first place that are not
  /// sure yet, or overwritten later. The next call names the same place from there on, unless
  /// leave() comes before.
  virtual std::size_t read_in_place(std::span<const iovec> places) { return read(places); }
  /// The place of read_in_place() is not touched afterwards.
  virtual void leave() {}
  /// As many bytes as there is room for; 0: none now. Nothing: the peer is gone, and read() says
  /// why after its last bytes.
  virtual std::optional<std::size_t> write(std::span<const iovec> parts) = 0;

  /// The same, and some of the bytes may stay where they are: their memory is not changed until
  /// all_returned() or take_back().
  virtual std::optional<std::size_t> lend(std::span<const iovec> parts) { return write(parts); }
  /// Whether none of the first `count` bytes that were written is lent any more.
  virtual bool all_returned(std::uint64_t /*count*/) const { return true; }
  /// After this it is so.
  virtual void take_back(std::uint64_t /*count*/) {}
  /// `move` puts the last bytes before that, as many as `to` has, to `to`; those of them that are
  /// lent are lent from there afterwards. Nothing of them is read meanwhile.
  virtual void move_lent(std::uint64_t /*count*/, std::span<const std::byte> /*to*/,
                         const std::function<void()>& move) {
    move();
  }

  /// Hands on what write() has taken; true: nothing of it is left in this process.
  virtual bool flush() { return true; }

  /// Appends what poll() has to look at so that a sleeping thread wakes when bytes come, or room
  /// (if `wants_room`).
  virtual void watch(std::vector<pollfd>& descriptors, bool wants_room) const = 0;
  /// poll() saw something of that. Returns whether read() may bring more than before.
  virtual bool on_ready(std::span<const pollfd> descriptors) = 0;
  /// When read() has something to do although poll() sees nothing.
  virtual TimePoint wake_at() const { return TimePoint::max(); }
  /// Whether bytes may come without a descriptor's saying so; then read() costs no system call.
  virtual bool is_memory() const { return false; }
  /// Before and after a sleep. False: bytes or room are there already.
  virtual bool begin_sleep(bool /*wants_room*/) { return true; }
  virtual void end_sleep() {}

  /// Whether written bytes may still be lost when this side closes.
  virtual bool has_unsent() const { return false; }
  /// Says that nothing more will be written; read() goes on.
  virtual void say_bye() noexcept {}
  /// After that: whether the peer is there and may lack something, so that whoever closes now could
  /// not send it again. Who reads finds out that it does not.
  virtual bool is_missed() const { return false; }
  virtual StreamCounters counters() const { return {}; }
  /// The peer's read() ends after what was written.
  virtual void close() noexcept = 0;
};

}  // namespace tutti::internal
