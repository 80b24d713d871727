// Run tokens, by which replicas share a device; how long a waiting thread looks before it sleeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

namespace tutti {

/// One per device that hosts several replicas. First come, first served.
class RunToken {
 public:
  /// Waits for the turn of this thread. Never call it while holding a mutex that a token holder may
  /// want.
  void acquire();
  void release();
  /// Threads that have asked for a held token and do not have it yet.
  unsigned long num_waiting() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable condition_;
  unsigned long next_ticket_ = 0;
  unsigned long serving_ = 0;
};

/// Holds `token` (may be null: nothing to hold) on this thread until destroyed. Nesting the same
/// token is free; a thread never holds two different ones (TUTTI_CHECK).
class RunTokenHolder {
 public:
  explicit RunTokenHolder(RunToken* token);
  ~RunTokenHolder();
  RunTokenHolder& operator=(RunTokenHolder&&) = delete;

 private:
  RunToken* previous_;
};

/// Gives this thread's token back while the thread waits for others, and takes it again when
/// destroyed. CondVar::wait_until, Clock::sleep_until and Thread::join do this by themselves. Does
/// nothing on a thread that holds no token. The destructor waits for the token: hold no mutex then.
class BlockedScope {
 public:
  BlockedScope();
  ~BlockedScope();
  BlockedScope& operator=(BlockedScope&&) = delete;

  /// Whether a BlockedScope made now would hand a token on.
  static bool current_thread_holds_token();

 private:
  RunToken* token_;
};

// Looking again for some microseconds before a thread goes to sleep: when it pays.

/// Whether every thread of this process that is awake, and one that the user started unless that
/// sleeps, can have a core of its own. Any thread.
bool cores_to_spare();

/// Looking again was in vain when what was waited for took longer, or when other programs wanted
/// the core: then a thread sleeps at once for the next waits, for more of them each time. One per
/// place where threads wait, and of one thread at a time.
class SpinningHabit {
 public:
  bool worth_it();
  void learn(bool was_in_vain);

 private:
  int penalty_ = 0;
  int to_skip_ = 0;
};

/// Some tens of nanoseconds in which the other thread of the core may work.
void pause_briefly();

}  // namespace tutti
