// Threads that play the ranks of a group, and notice when one of them does not come back.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/rank_threads.h"

#include "tutti/core/text.h"

namespace tutti::conformance {

RankThreads::RankThreads(int size) {
  for (int rank = 0; rank < size; ++rank) {
    threads_.push_back(
        Executor::system().start(concat("conform-", rank), [this, rank] { work(rank); }));
  }
}

RankThreads::~RankThreads() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

void RankThreads::start(std::function<void(int rank)> body) {
  {
    MutexLock lock(mutex_);
    body_ = std::move(body);
    ++round_;
    running_ = size();
  }
  changed_.notify_all();
}

bool RankThreads::wait(Duration limit) {
  MutexLock lock(mutex_);
  return changed_.wait_for(mutex_, limit,
                           [this]() TUTTI_REQUIRES(mutex_) { return running_ == 0; });
}

void RankThreads::work(int rank) {
  std::uint64_t done = 0;
  while (true) {
    std::function<void(int)> body;
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(),
                          [&]() TUTTI_REQUIRES(mutex_) { return ending_ || round_ != done; });
      if (ending_) return;
      done = round_;
      body = body_;
    }
    body(rank);
    bool last = false;
    {
      MutexLock lock(mutex_);
      last = --running_ == 0;
    }
    if (last) changed_.notify_all();
  }
}

}  // namespace tutti::conformance
