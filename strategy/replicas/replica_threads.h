// Persistent, named replica threads, which run one body at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/run_token.h"
#include "strategy/replicas/rendezvous.h"
#include "tutti/core/executor.h"

namespace tutti::internal {

/// Threads of a strategy's replicas. Replica 0 runs on the thread that calls run(), and each other
/// replica on its own thread "replica-<r>", which lives as long as the strategy. Replicas on one
/// device take turns by passing its run token. A replica that is waiting in a merge call executes
/// its part of a nested run().
class ReplicaThreads {
 public:
  using Body = std::function<void(int replica, Rendezvous& rendezvous, IdleWork& nested)>;

  /// `replica_devices`: one per replica. `sequential`: replicas run one at a time, each until it
  /// blocks.
  ReplicaThreads(const std::vector<Device>& replica_devices, bool sequential, Duration timeout);
  /// Joins the threads.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Runs body(r, ...) for each replica and returns when all have ended. Only one outermost run at
  /// a time is allowed; merge functions start nested runs on the same thread.
  RunOutcome run(const Body& body);
  ReplicaMonitor& monitor() { return monitor_; }

 private:
  struct Frame {
    Frame(ReplicaMonitor& monitor, int num_replicas, Duration timeout, RunPlace place,
          const Body& frame_body)
        : body(frame_body), rendezvous(monitor, num_replicas, timeout, place) {}
    std::uint64_t number = 0;
    const Body& body;
    Rendezvous rendezvous;
  };
  class NestedBodies;

  void run_as_replica_0(Frame& frame, RunPlace place);
  void serve(int replica);
  void stop();
  bool has_body(int replica) TUTTI_REQUIRES(monitor_.mutex());
  void run_body(int replica);

  const int num_replicas_;
  const Duration timeout_;
  ReplicaMonitor monitor_;
  std::vector<std::unique_ptr<RunToken>> tokens_;
  std::vector<RunToken*> token_of_replica_;  // nullptr: no other replica uses the device
  std::vector<Frame*> frames_ TUTTI_GUARDED_BY(monitor_.mutex());  // innermost last
  // Sequence number of the last frame that each replica started.
  std::vector<std::uint64_t> last_taken_ TUTTI_GUARDED_BY(monitor_.mutex());
  std::uint64_t next_number_ TUTTI_GUARDED_BY(monitor_.mutex()) = 1;
  bool stopping_ TUTTI_GUARDED_BY(monitor_.mutex()) = false;
  std::vector<std::unique_ptr<Thread>> threads_;  // declared last, so that they are joined first
};

}  // namespace tutti::internal
