// Implements AwaitedAnswers, which waits for the replies to one batch.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/variable_service.h"

#include <utility>

namespace tutti::internal {

void AwaitedAnswers::set_result(BatchResult result) {
  const MutexLock lock(mutex_);
  result_ = std::move(result);
  given_.notify_all();
}

bool AwaitedAnswers::is_ready() const {
  const MutexLock lock(mutex_);
  return result_.has_value();
}

std::vector<OperationAnswer> AwaitedAnswers::wait(TimePoint deadline) {
  const MutexLock lock(mutex_);
  const auto is_given = [this]() TUTTI_REQUIRES(mutex_) { return result_.has_value(); };
  if (!given_.wait_until(mutex_, deadline, is_given)) {
    tutti::fail(
        ErrorCode::kDeadlineExceeded, server_,
        ": timed out waiting for a reply; a read may be waiting for a synchronous step or for "
        "slower workers");
  }
  if (result_->error) throw result_->error->with_context(server_);
  return result_->answers;
}

}  // namespace tutti::internal
