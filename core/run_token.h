// Replicas that share a device take turns: the one that holds the device's run token computes.
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
  RunTokenHolder(const RunTokenHolder&) = delete;
  RunTokenHolder& operator=(const RunTokenHolder&) = delete;

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
  BlockedScope(const BlockedScope&) = delete;
  BlockedScope& operator=(const BlockedScope&) = delete;

  /// Whether a BlockedScope made now would hand a token on.
  static bool current_thread_holds_token();

 private:
  RunToken* token_;
};

}  // namespace tutti
