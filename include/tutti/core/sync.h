// Blocking primitives: mutex, condition variable with deadlines, and one-shot event.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"

// Lock annotations for clang's thread-safety analysis; empty for other compilers.
#if defined(__clang__)
#define TUTTI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TUTTI_THREAD_ANNOTATION(x)
#endif

/// This member may only be accessed while `mutex` is held.
#define TUTTI_GUARDED_BY(mutex) TUTTI_THREAD_ANNOTATION(guarded_by(mutex))
/// The caller must hold `mutex`.
#define TUTTI_REQUIRES(...) TUTTI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))

namespace tutti {

/// Mutex known to clang's thread-safety analysis.
class TUTTI_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() TUTTI_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() TUTTI_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a mutex until the end of a block.
class TUTTI_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TUTTI_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TUTTI_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Condition variable for a condition that a Mutex guards. Every wait has a deadline. A replica
/// releases its run token while it waits (core/run_token.h) and acquires it again before
/// wait_until() returns.
class CondVar {
 public:
  /// Waits until `ready()` or the deadline; returns ready(). Requires: `mutex` held; it is held
  /// again on return. `ready` runs several times, with `mutex` held. A thread with a run token may
  /// return after the deadline, because it must acquire the token again.
  bool wait_until(Mutex& mutex, TimePoint deadline, const std::function<bool()>& ready)
      TUTTI_REQUIRES(mutex);
  bool wait_for(Mutex& mutex, Duration timeout, const std::function<bool()>& ready)
      TUTTI_REQUIRES(mutex) {
    return wait_until(mutex, deadline_after(Clock::system().now(), timeout), ready);
  }
  void notify_one() noexcept {
    notifications_.fetch_add(1, std::memory_order_release);
    condition_.notify_one();
  }
  void notify_all() noexcept {
    notifications_.fetch_add(1, std::memory_order_release);
    condition_.notify_all();
  }

 private:
  std::condition_variable condition_;
  std::atomic<unsigned> notifications_{0};  // read by spinning threads, without the mutex
};

/// Event that happens once. Thread-safe.
class Event {
 public:
  void set();
  bool is_set() const;
  /// Returns true if the event occurred before the deadline.
  bool wait_until(TimePoint deadline);

 private:
  mutable Mutex mutex_;
  CondVar condition_;
  bool set_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
