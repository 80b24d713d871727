// TCP proxy that injects seeded faults into its connections.
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

/// Faults that a proxy injects. A field named `..._every` is the mean number of bytes between
/// faults of one kind; each distance is random, between 1 byte and twice the mean; 0
/// disables this kind.
struct ChaosPlan {
  std::uint64_t seed = 1;
  std::uint64_t cut_every = 0;         // connection resets, visible to both ends
  std::uint64_t half_close_every = 0;  // half-closes, which end only one direction
  std::uint64_t flip_every = 0;        // single-bit flips
  int most_events = 0;          // maximum number of faults; afterwards the proxy only forwards
  std::uint64_t spares = 4096;  // number of initial bytes without faults, for handshakes
  std::size_t trickle = 0;      // maximum number of bytes forwarded at once; 0: unlimited
  Duration delay = Duration::zero();  // time before each chunk is forwarded
};

/// Proxy that listens on a loopback port and forwards each connection to `target`, on a separate
/// thread.
class ChaosProxy {
 public:
  ChaosProxy(internal::Endpoint target, const ChaosPlan& plan);
  ~ChaosProxy();

  const internal::Endpoint& endpoint() const { return listener_.endpoint; }
  int num_cuts() const { return cuts_; }
  int num_half_closes() const { return half_closes_; }
  int num_flips() const { return flips_; }
  /// Resets all connections immediately.
  void cut_all() { cut_now_ = true; }
  /// Drops all further data of the current connections in both directions without closing them,
  /// like a network that loses all packets.
  void swallow() { swallow_now_ = true; }
  /// Same as swallow(), but also for later connections.
  void swallow_for_good() { swallows_new_ = swallow_now_ = true; }
  /// Same as swallow(), but only for the next connection.
  void swallow_next() { swallow_next_ = true; }
  /// Resets a connection (cut_after) or flips a bit (flip_after) after `bytes` more bytes. Counts
  /// toward the plan's `most_events`.
  void cut_after(std::uint64_t bytes) { cut_after_ = bytes; }
  void flip_after(std::uint64_t bytes) { flip_after_ = bytes; }
  /// Returns the time of the last fault.
  TimePoint last_event() const { return last_event_; }
  /// Returns the number of connections accepted so far.
  int num_accepted() const { return accepted_; }
  /// Returns the number of bytes received so far over all connections, in both directions.
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
