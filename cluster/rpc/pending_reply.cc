// One settles it, others wait.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/pending_reply.h"

#include <utility>

#include "tutti/cluster/control/health_rules.h"

namespace tutti::internal {

PendingReply::PendingReply(std::shared_ptr<const std::string> what)
    : what_(std::move(what)), begin_(Clock::system().now()) {}

bool PendingReply::is_ready() const {
  MutexLock lock(mutex_);
  return is_ready_;
}

bool PendingReply::wait_until_ready(TimePoint deadline) {
  MutexLock lock(mutex_);
  return changed_.wait_until(mutex_, deadline,
                             [this]() TUTTI_REQUIRES(mutex_) { return is_ready_; });
}

void PendingReply::when_ready(std::function<void()> told) {
  {
    MutexLock lock(mutex_);
    if (!is_ready_) {
      told_ = std::move(told);
      return;
    }
  }
  told();
}

Packet PendingReply::wait(TimePoint deadline) {
  (void)wait_until_ready(deadline);
  MutexLock lock(mutex_);
  if (!is_ready_) {
    fail(ErrorCode::kDeadlineExceeded, "rpc: ", *what_, " did not answer within ",
         seconds_text(Clock::system().now() - begin_), " s");
  }
  if (error_) throw *error_;
  if (std::exchange(is_taken_, true)) {
    fail(ErrorCode::kFailedPrecondition, "rpc: ", *what_,
         ": the answer was taken before; expected one successful wait() per reply");
  }
  return std::move(answer_);
}

void PendingReply::settle(Packet answer, std::optional<Error> error) {
  std::function<void()> told;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_ready_, true)) return;
    answer_ = std::move(answer);
    error_ = std::move(error);
    changed_.notify_all();
    told.swap(told_);
  }
  if (told) told();
}

}  // namespace tutti::internal
