// Threads that play the ranks of a group, and notice when one of them does not come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::conformance {

/// `size` threads that wait for work. Threads: one at a time calls start() and wait().
class RankThreads {
 public:
  explicit RankThreads(int size);
  /// Joins; the work must have ended.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  /// Every thread calls body(rank), which must not throw. The work before must have ended.
  void start(std::function<void(int rank)> body);
  /// Returns whether all have ended within the time.
  bool wait(Duration limit);

 private:
  void work(int rank);

  Mutex mutex_;
  CondVar changed_;
  std::function<void(int)> body_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t round_ TUTTI_GUARDED_BY(mutex_) = 0;
  int running_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool ending_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace tutti::conformance
