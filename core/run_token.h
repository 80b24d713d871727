// Run tokens, which let replicas take turns on a device, and the decision whether to spin before
// sleeping.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

namespace tutti {

/// Token that allows its holder to use a device shared by several replicas. Granted in request
/// order.
class RunToken {
 public:
  /// Waits until this thread has the token. Never call it while holding a mutex for which a token
  /// holder may wait.
  void acquire();
  void release();
  /// Returns the number of threads that wait for the token.
  unsigned long num_waiting() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable condition_;
  unsigned long next_ticket_ = 0;
  unsigned long serving_ = 0;
};

/// Scope in which this thread holds `token`. Does nothing if the token is null or this thread
/// already holds it. A thread never holds two different tokens (TUTTI_CHECK).
class RunTokenHolder {
 public:
  explicit RunTokenHolder(RunToken* token);
  ~RunTokenHolder();
  RunTokenHolder& operator=(RunTokenHolder&&) = delete;

 private:
  RunToken* previous_;
};

/// Scope in which this thread waits for other threads. Releases the thread's token; the destructor
/// acquires it again, so the thread must not hold a mutex then. Used, for example, by
/// CondVar::wait_until() and Thread::join(). Does nothing on a thread without a token.
class BlockedScope {
 public:
  BlockedScope();
  ~BlockedScope();
  BlockedScope& operator=(BlockedScope&&) = delete;

  /// Returns true if constructing a BlockedScope would release a token.
  static bool current_thread_holds_token();

 private:
  RunToken* token_;
};

// Spinning: if it is worthwhile, a thread polls for up to 200 microseconds before it sleeps.

/// Returns true if every awake thread of this process can have a core of its own. The threads that
/// Executor::system() did not start count as one, or as none if one of them sleeps. Thread-safe.
bool cores_to_spare();

/// Predictor that decides from earlier attempts when spinning is worthwhile. An attempt fails if it
/// ends before the condition holds, or if other programs needed the core. After a failure, the next
/// waits sleep immediately; each further failure increases the number of such waits. Use one object
/// for each place in the code that waits. Not thread-safe.
class SpinPredictor {
 public:
  bool should_spin();
  void record(bool was_in_vain);

 private:
  int penalty_ = 0;
  int to_skip_ = 0;
};

/// Pauses for tens of nanoseconds, leaving the core to its other hardware thread.
void pause_briefly();

}  // namespace tutti
