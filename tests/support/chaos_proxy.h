// A TCP proxy that breaks what passes through it, by a seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "cluster/net/socket.h"
#include "tutti/core/executor.h"

namespace tutti::testing {

/// Distances in bytes are means: the next event comes after 1 to twice as many. 0: never.
struct ChaosPlan {
  std::uint64_t seed = 1;
  std::uint64_t cut_every = 0;         // both ends see a reset
  std::uint64_t half_close_every = 0;  // one direction ends, the other goes on
  std::uint64_t flip_every = 0;        // one bit is changed
  int most_events = 0;                 // of all kinds; then it passes everything on
  std::uint64_t spares = 4096;         // bytes at the beginning, for the handshakes of a group
  std::size_t trickle = 0;             // at most so many bytes at once; 0: as they come
  Duration delay = Duration::zero();   // before each piece
};

/// Listens on a port of loopback and connects each connection to `target`. A thread of its own.
class ChaosProxy {
 public:
  ChaosProxy(internal::Endpoint target, const ChaosPlan& plan);
  ~ChaosProxy();

  const internal::Endpoint& endpoint() const { return listener_.endpoint; }
  int num_cuts() const { return cuts_; }
  int num_half_closes() const { return half_closes_; }
  int num_flips() const { return flips_; }
  /// Resets all connections now.
  void cut_all() { cut_now_ = true; }
  /// From now on nothing passes on the connections that are there, in either direction, and no end
  /// of theirs is told: a network whose packets vanish.
  void swallow() { swallow_now_ = true; }
  /// The same, also for connections that come.
  void swallow_for_good() { swallows_new_ = swallow_now_ = true; }
  /// The same, for the next connection that comes alone.
  void swallow_next() { swallow_next_ = true; }
  /// Cuts, or changes a bit, when so many more bytes have passed; counts as an event of the plan.
  void cut_after(std::uint64_t bytes) { cut_after_ = bytes; }
  void flip_after(std::uint64_t bytes) { flip_after_ = bytes; }
  /// When it broke something last.
  TimePoint last_event() const { return last_event_; }
  /// Connections that came so far, all told.
  int num_accepted() const { return accepted_; }
  /// Bytes that came so far, of both directions of all connections.
  std::uint64_t num_passed() const { return passed_; }

 private:
  struct Direction {
    internal::FileDescriptor* from;
    internal::FileDescriptor* to;
    std::vector<std::byte> waiting;
    bool is_closed = false;
  };
  struct Pair {
    internal::FileDescriptor client, server;
    std::vector<Direction> ways;
    bool is_broken = false;
    bool is_swallowed = false;
  };

  void run();
  void obey();
  void accept_all();
  bool move(Pair& pair, Direction& way);
  static void swallow(Direction& way);
  void count_event(std::atomic<int>& events);
  void disturb(Pair& pair, Direction& way, std::size_t count);
  std::uint64_t next_distance(std::uint64_t mean);
  static void reset(internal::FileDescriptor& socket);
  static constexpr std::uint64_t kNever = std::uint64_t{1} << 62;

  const internal::Endpoint target_;
  const ChaosPlan plan_;
  internal::Listener listener_;
  internal::FileDescriptor stop_event_;
  std::uint64_t state_;
  std::atomic<std::uint64_t> passed_{0}, cut_after_{kNever}, flip_after_{kNever};
  std::uint64_t cut_at_ = 0, half_close_at_ = 0, flip_at_ = 0;
  std::list<Pair> pairs_;
  std::atomic<int> cuts_{0}, half_closes_{0}, flips_{0};
  std::atomic<int> accepted_{0};
  std::atomic<TimePoint> last_event_{};
  std::atomic<bool> stops_{false}, cut_now_{false}, swallow_now_{false};
  std::atomic<bool> swallows_new_{false}, swallow_next_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::testing
