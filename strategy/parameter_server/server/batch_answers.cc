// The answers to one batch: counted, given, waited for.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/batch_answers.h"

#include <utility>

namespace tutti::internal {

BatchAnswers::BatchAnswers(std::size_t num_operations, Done done)
    : answers_(num_operations), num_missing_(num_operations + 1), done_(std::move(done)) {}

void BatchAnswers::set(std::size_t index, OperationAnswer answer) {
  std::optional<BatchResult> result;
  Done done;
  {
    const MutexLock lock(mutex_);
    answers_[index] = std::move(answer);
    result = count_down(done);
  }
  if (result) done(*std::move(result));
}

void BatchAnswers::let_go() {
  std::optional<BatchResult> result;
  Done done;
  {
    const MutexLock lock(mutex_);
    result = count_down(done);
  }
  if (result) done(*std::move(result));
}

/// What is to be given to `done` when the mutex is released, if this was the last one.
std::optional<BatchResult> BatchAnswers::count_down(Done& done) {
  if (--num_missing_ > 0 || !done_) return std::nullopt;
  done = std::exchange(done_, nullptr);
  return BatchResult{std::move(answers_)};
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
