// One end of a connection for calls on plain TCP: frames in, frames out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/rpc/tcp_bytes.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/core/spinning.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Whoever sends writes what the system takes at once; the rest, and all reading, is the work of
/// the one thread that is in serve() (before: receive()), or of one in serve_until(), which has the
/// role of the former meanwhile.
class RpcTcpConnection {
 public:
  /// After `handshake`, whose side `own` this is.
  RpcTcpConnection(FileDescriptor socket, const Handshake& handshake, Handshake::Side own,
                   std::size_t longest_payload);

  /// Any thread; does not wait. A broken connection swallows it.
  void send(RpcFrame frame);
  /// The first frame. Throws kUnavailable saying why there is none, kDataLoss.
  RpcFrame receive(TimePoint deadline);
  /// Hands frames to `take` until the connection ends; returns why. What `take` throws ends it.
  std::string serve(const RpcReader::Lease& lease, const std::function<void(RpcFrame)>& take);
  /// Reads in the place of serve() until `is_done()`: whoever waits for an answer takes it without
  /// another thread having to wake first. Returns at once where nobody serves. Any thread.
  void serve_until(TimePoint deadline, const std::function<bool()>& is_done);
  /// Ends serve() when all that was sent has gone, at `deadline` at the latest. Any thread.
  void finish(TimePoint deadline);
  /// Ends it now, for both sides. Any thread.
  void close();
  /// Looks again whether there is room. Any thread.
  void wake();
  /// Of frames to come. The thread's that serves.
  void limit_payload(std::size_t longest) { reader_.limit_payload(longest); }

 private:
  bool flush();
  void wait(TimePoint deadline);
  void set_least_to_wake();
  void look_or_sleep(std::span<pollfd> descriptors, TimePoint deadline);
  bool read_some();
  bool step(TimePoint deadline);
  bool is_finished();
  bool take_role(TimePoint deadline, const std::function<bool()>& is_done);
  void make_way();

  const FileDescriptor socket_;
  const FileDescriptor wake_;
  std::atomic<bool> is_open_{true};
  // Of the thread that has the role.
  RpcReader reader_;
  bool is_readable_ = false, has_more_ = true;
  int least_to_wake_ = 1;  // bytes
  SpinningHabit habit_;
  std::string reason_;
  RpcReader::Lease lease_;
  std::function<void(RpcFrame)> take_;

  Mutex role_mutex_;
  CondVar role_changed_;
  bool is_served_ TUTTI_GUARDED_BY(role_mutex_) = false;
  bool is_taken_ TUTTI_GUARDED_BY(role_mutex_) = false;     // the role, by whomever
  int num_helpers_ TUTTI_GUARDED_BY(role_mutex_) = 0;       // in serve_until()
  bool had_helpers_ TUTTI_GUARDED_BY(role_mutex_) = false;  // lately
  bool is_asleep_ TUTTI_GUARDED_BY(role_mutex_) = false;    // serve(), until it is told
  bool has_work_ TUTTI_GUARDED_BY(role_mutex_) = false;     // for serve()

  Mutex mutex_;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  RpcWriter writer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<TimePoint> finish_at_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
