// One lock for all that replicas of a strategy wait for, and in sequential mode whose turn it is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "tutti/core/sync.h"

namespace tutti::internal {

/// Replicas and the thread that called run() meet here. In sequential mode a replica goes on only
/// when it has the turn; it hands the turn to the next replica (cyclic order) that can go on when
/// it waits or ends.
class ReplicaMonitor {
 public:
  ReplicaMonitor(int num_replicas, bool sequential)
      : sequential_(sequential && num_replicas > 1),
        seats_(static_cast<std::size_t>(num_replicas)) {}

  Mutex& mutex() TUTTI_THREAD_ANNOTATION(lock_returned(mutex_)) { return mutex_; }
  /// For conditions, which wait() calls with the mutex held: tells the thread-safety analysis.
  void assert_held() const TUTTI_THREAD_ANNOTATION(assert_capability(mutex_)) {}

  /// Waits until `ready()` or the deadline; returns ready(). Called by replica `replica` between
  /// enter() and leave().
  bool wait(int replica, TimePoint deadline, const std::function<bool()>& ready)
      TUTTI_REQUIRES(mutex_);
  /// The same for the thread that called run(), and for replica threads between runs.
  void wait_as_caller(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);
  void wait_idle(const std::function<bool()>& ready) TUTTI_REQUIRES(mutex_);

  /// Something that a replica waits for has changed.
  void notify_replicas() TUTTI_REQUIRES(mutex_);
  void notify_caller() { caller_.notify_all(); }

  /// The caller of run() announces that all replicas begin or, parked, take up a nested body:
  /// replica 0 has the first turn.
  void begin(bool outermost) TUTTI_REQUIRES(mutex_);
  /// A replica starts its body, and ends it.
  void enter(int replica) TUTTI_REQUIRES(mutex_);
  void leave(int replica) TUTTI_REQUIRES(mutex_);
  /// A replica hands the turn on; its next wait() takes it up again.
  void yield(int replica) TUTTI_REQUIRES(mutex_);
  /// A replica that yielded goes on where it was before the nested body.
  void resume(int replica) TUTTI_REQUIRES(mutex_);

 private:
  struct Seat {
    bool active = false;
    const std::function<bool()>* ready = nullptr;  // nullptr: can go on
  };
  void pass_turn() TUTTI_REQUIRES(mutex_);
  bool wait_for_turn(int replica, TimePoint deadline) TUTTI_REQUIRES(mutex_);

  const bool sequential_;
  Mutex mutex_;
  CondVar replicas_;
  CondVar caller_;
  std::vector<Seat> seats_ TUTTI_GUARDED_BY(mutex_);
  int turn_ TUTTI_GUARDED_BY(mutex_) = kNobody;
  int last_turn_ TUTTI_GUARDED_BY(mutex_) = kNobody;
  static constexpr int kNobody = -1;
};

}  // namespace tutti::internal
