// Waiting for a condition that other threads make true without a mutex.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>

#include "tutti/core/sync.h"

namespace tutti {

/// How a waiting thread passes the first microseconds: looking again and again (every thread that
/// it may wait for has a core of its own), or giving its core to others between two looks.
enum class SpinPolicy { kSpin, kYield };

/// Wakes threads that wait for atomics to change. A wait that ends at once or soon costs tens of
/// nanoseconds; a longer one sleeps. Threads: any.
class SpinWait {
 public:
  explicit SpinWait(SpinPolicy policy) : policy_(policy) {}

  /// Waits until `ready()`, which reads atomics (sequentially consistent, as must be the stores
  /// that it waits for), or the deadline; returns ready(). A thread that holds a run token does not
  /// spin.
  bool wait_until(TimePoint deadline, const std::function<bool()>& ready) {
    return ready() || spin(ready) || sleep(deadline, ready);
  }
  /// After a sequentially consistent store that may have made a condition true.
  void notify() noexcept {
    if (num_sleepers_.load() > 0) wake();
  }

 private:
  bool spin(const std::function<bool()>& ready) const;
  bool sleep(TimePoint deadline, const std::function<bool()>& ready);
  void wake() noexcept;

  const SpinPolicy policy_;
  std::atomic<int> num_sleepers_{0};
  Mutex mutex_;
  CondVar condition_;
};

}  // namespace tutti
