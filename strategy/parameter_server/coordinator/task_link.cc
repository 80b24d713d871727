// One thread connects, greets, works, and connects again.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/task_link.h"

#include <utility>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

Error stopped() { return Error(ErrorCode::kCancelled, "the coordinator was stopped"); }

}  // namespace

void TaskLink::begin(const std::string& thread) {
  if (options_.when_lost) {
    subscription_ = options_.when_lost(
        [this](std::uint64_t incarnation, const Error& error) { give_up(incarnation, error); });
  }
  thread_ = Executor::system().start(thread, [this] { run(); });
}

void TaskLink::end() {
  subscription_.reset();
  stop_.set();
  give_up(~std::uint64_t{0}, stopped());
  thread_->join();
}

void TaskLink::watch(std::function<void()> changed) {
  const MutexLock lock(mutex_);
  on_change_ = std::move(changed);
}

void TaskLink::tell_change() {
  std::function<void()> on_change;
  {
    const MutexLock lock(mutex_);
    on_change = on_change_;
  }
  if (on_change) on_change();
}

void TaskLink::give_up(std::uint64_t incarnation, const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    client = client_ ? client_ : greeted_;
    const bool is_that_life = client != nullptr && client->server_incarnation() <= incarnation;
    if (!is_that_life) return;  // news of a former one
    loss_ = error;
    changed_.notify_all();
  }
  client->fail_all(error);
}

void TaskLink::run() {
  while (!stop_.is_set()) {
    if (std::shared_ptr<RpcClient> client = open()) {
      tell_change();
      live(std::move(client));
      tell_change();
    } else {
      stop_.wait_until(deadline_after(Clock::system().now(), durations::kTryAgain));
    }
  }
}

/// Its end, and the job, end the greeting by the client that is greeted.
std::shared_ptr<RpcClient> TaskLink::open() {
  std::shared_ptr<RpcClient> client;
  try {
    client = options_.connect();
    {
      const MutexLock lock(mutex_);
      if (stop_.is_set()) throw stopped();
      greeted_ = client;
      loss_.reset();
    }
    greet(*client);
    const MutexLock lock(mutex_);
    client_ = std::move(greeted_);
  } catch (const Error& error) {
    {
      const MutexLock lock(mutex_);
      greeted_.reset();
      why_gone_ = error;
    }
    complain(error);
    return nullptr;
  }
  last_complaint_.clear();
  complain_at_ = {};
  return client;
}

void TaskLink::live(std::shared_ptr<RpcClient> client) {
  Error why = stopped();
  try {
    work(*client);
  } catch (const Error& error) {
    why = error;
  }
  {
    const MutexLock lock(mutex_);
    client_.reset();
    why_gone_ = why;
  }
  ended(std::move(client), why);
}

void TaskLink::complain(const Error& error) {
  if (stop_.is_set()) return;
  const bool is_absent =
      error.code() == ErrorCode::kDeadlineExceeded || error.code() == ErrorCode::kUnavailable;
  const TimePoint now = Clock::system().now();
  // A task that is simply not there is no news.
  const TimePoint again_at = deadline_after(now, 6 * durations::kSayAgainEvery);
  if (complain_at_ == TimePoint{}) complain_at_ = again_at;
  const bool is_news = std::exchange(last_complaint_, error.message()) != error.message();
  if (is_absent ? now < complain_at_ : !is_news) return;
  complain_at_ = again_at;
  log_warning(concat("coordinator: no connection to ", options_.name, ": ", error.message()));
}

}  // namespace tutti::internal
