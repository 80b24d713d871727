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
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Whoever sends writes what the system takes at once; the rest, and all reading, is the work of
/// the one thread that is in receive() or serve().
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
  bool read_some();
  bool is_finished();

  const FileDescriptor socket_;
  const FileDescriptor wake_;
  std::atomic<bool> is_open_{true};
  // The thread's own.
  RpcReader reader_;
  bool is_readable_ = false;
  std::string reason_;

  Mutex mutex_;
  RpcWriter writer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<TimePoint> finish_at_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
