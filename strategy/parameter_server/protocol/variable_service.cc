// Answers to one batch: counting, delivery, waiting.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/variable_service.h"

#include <utility>

namespace tutti::internal {

BatchAnswers::BatchAnswers(std::size_t num_operations, Done done)
    : answers_(num_operations), num_missing_(num_operations + 1), done_(std::move(done)) {}

/// Stores the answer before counting it, so that the last count finds all answers.
void BatchAnswers::set(std::size_t index, OperationAnswer answer) {
  {
    const MutexLock lock(mutex_);
    answers_[index] = std::move(answer);
  }
  let_go();
}

void BatchAnswers::let_go() {
  Done done;
  BatchResult result;
  {
    const MutexLock lock(mutex_);
    if (--num_missing_ > 0 || !done_) return;
    done = std::exchange(done_, nullptr);
    result.answers = std::move(answers_);
  }
  done(std::move(result));
}

void BatchAnswers::fail(const Error& error) {
  Done done;
  {
    const MutexLock lock(mutex_);
    done = std::exchange(done_, nullptr);
  }
  if (done) done({{}, error});
}

void AwaitedAnswers::give(BatchResult result) {
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
    tutti::fail(ErrorCode::kDeadlineExceeded, server_,
                ": no answer in time; a read waits for synchronous steps, or for slower workers");
  }
  if (result_->error) throw result_->error->with_context(server_);
  return result_->answers;
}

}  // namespace tutti::internal
