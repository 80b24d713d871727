// Replicas that share a device take turns: the one that holds the device's run token computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

namespace tutti {

/// One per device that hosts several replicas. First come, first served.
class RunToken {
 public:
  void acquire();
  void release();

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  unsigned long next_ticket_ = 0;
  unsigned long serving_ = 0;
};

/// Holds `token` (may be null: nothing to hold) on this thread until destroyed.
class RunTokenHolder {
 public:
  explicit RunTokenHolder(RunToken* token);
  ~RunTokenHolder();
  RunTokenHolder(const RunTokenHolder&) = delete;
  RunTokenHolder& operator=(const RunTokenHolder&) = delete;

 private:
  RunToken* previous_;
};

/// Gives this thread's token back while the thread waits for others, and takes it again when destroyed.
/// CondVar::wait_until does this by itself. Does nothing on a thread that holds no token.
class BlockedScope {
 public:
  BlockedScope();
  ~BlockedScope();
  BlockedScope(const BlockedScope&) = delete;
  BlockedScope& operator=(const BlockedScope&) = delete;

 private:
  RunToken* token_;
};

}  // namespace tutti
