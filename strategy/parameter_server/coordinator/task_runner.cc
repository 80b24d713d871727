// One thread takes tasks in order; whoever takes a task off the record answers for it.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/task_runner.h"

#include <algorithm>
#include <vector>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

thread_local bool is_thread_of_tasks = false;

}  // namespace

std::shared_ptr<void> WorkerResourceTable::find(const PerWorkerHandle& handle) {
  const Key key(handle.id, handle.instance);
  {
    MutexLock lock(mutex_);
    const auto found = made_.find(key);
    if (found != made_.end()) {
      if (found->second.error) throw *found->second.error;
      return found->second.value;
    }
  }
  Made made = make(handle);  // may take long, and read files
  MutexLock lock(mutex_);
  made_[key] = made;
  if (made.error) throw *made.error;
  return made.value;
}

WorkerResourceTable::Made WorkerResourceTable::make(const PerWorkerHandle& handle) {
  Made made;
  try {
    as_input([&] {
      const ResourceDefinition definition = registry_.find_resource(handle.id);
      if (definition.type != handle.type) {
        fail(ErrorCode::kInvalidArgument, "per-worker value ", handle.id, ": expected ",
             definition.type, ", got a handle of ", handle.type);
      }
      made.value = definition.make(worker_, handle.instance);
    });
  } catch (const OriginError& error) {
    made.error =
        OriginError(error.origin(), error.code(),
                    concat("per-worker value ", handle.id, " (", handle.type,
                           "): could not be made on worker ", worker_, ": ", error.message()));
  }
  return made;
}

void WorkerResourceTable::release(const PerWorkerHandle& handle) {
  Made released;  // destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = made_.find({handle.id, handle.instance});
  if (found == made_.end()) return;
  released = std::move(found->second);
  made_.erase(found);
}

TaskRunner::TaskRunner(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry)
    : worker_(worker),
      strategy_(strategy),
      registry_(registry),
      resources_(worker, registry),
      thread_(Executor::system().start(concat("ps-worker-", worker), [this] { run(); })) {}

TaskRunner::~TaskRunner() {
  const std::string last = doing();
  die(ErrorCode::kCancelled, "the worker was shut down");
  {
    MutexLock lock(mutex_);
    const auto has_ended = [this]() TUTTI_REQUIRES(mutex_) { return has_ended_; };
    while (!condition_.wait_for(mutex_, durations::kSayAgainEvery, has_ended)) {
      log_warning(concat("worker ", worker_, ": is shut down, and still waits for ", last));
    }
  }
  thread_->join();
}

void TaskRunner::start(WorkerTask task, Done done) {
  {
    MutexLock lock(mutex_);
    if (!is_dead_) {
      waiting_.push_back({std::move(task), std::move(done)});
      condition_.notify_all();
      return;
    }
  }
  done(not_done(AttemptReport::Kind::kNotStarted, worker_,
                concat("worker ", worker_, ": was lost before it began")));
}

void TaskRunner::recall(std::uint64_t closure, int attempt) {
  std::optional<Given> given;
  {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(waiting_, [&](const Given& each) {
      return each.task.closure == closure && each.task.attempt == attempt;
    });
    if (found == waiting_.end()) return;
    given = std::move(*found);
    waiting_.erase(found);
  }
  given->done(not_done(AttemptReport::Kind::kNotStarted, worker_,
                       concat("worker ", worker_, ": gave it to another one")));
}

void TaskRunner::die(ErrorCode code, const std::string& text) {
  std::deque<Given> waiting;
  std::optional<Given> running;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_dead_, true)) return;
    waiting.swap(waiting_);
    running.swap(running_);
    condition_.notify_all();
  }
  if (running) {
    running->task.token->cancel();
    running->done(not_done(AttemptReport::Kind::kWorkerLost, worker_, text, code));
  }
  for (Given& each : waiting) {
    each.done(not_done(AttemptReport::Kind::kNotStarted, worker_, text, code));
  }
}

void TaskRunner::release(const PerWorkerHandle& handle) {
  MutexLock lock(mutex_);
  // By the thread: tasks that it has may use the value.
  to_release_.push_back(handle);
  condition_.notify_all();
}

std::string TaskRunner::doing() const {
  MutexLock lock(mutex_);
  if (!running_) return "nothing";
  return concat(running_->task.name(), " for ",
                seconds_between(running_since_, Clock::system().now()), " s");
}

bool TaskRunner::has_ended() const {
  MutexLock lock(mutex_);
  return has_ended_;
}

bool TaskRunner::runs_this_thread() { return is_thread_of_tasks; }

void TaskRunner::run() {
  is_thread_of_tasks = true;
  for (;;) {
    WorkerTask task;
    std::deque<PerWorkerHandle> released;
    {
      MutexLock lock(mutex_);
      condition_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return is_dead_ || !waiting_.empty() || !to_release_.empty();
      });
      if (is_dead_) {
        has_ended_ = true;
        condition_.notify_all();
        return;
      }
      if (waiting_.empty()) {
        released.swap(to_release_);
      } else {
        running_ = std::move(waiting_.front());
        waiting_.pop_front();
        running_since_ = Clock::system().now();
        task = running_->task;
      }
    }
    if (!released.empty()) {
      for (const PerWorkerHandle& handle : released) resources_.release(handle);
      continue;
    }
    TaskOutcome outcome = outcome_of(task);
    std::optional<Given> given;
    {
      MutexLock lock(mutex_);
      given.swap(running_);
    }
    if (given) given->done(std::move(outcome));
  }
}

TaskOutcome TaskRunner::outcome_of(const WorkerTask& task) {
  if (task.token->is_cancelled()) {
    return not_done(AttemptReport::Kind::kNotStarted, worker_, "it was cancelled before it began",
                    ErrorCode::kCancelled);
  }
  const TraceSpan span("closure", "coordinator",
                       {{"number", static_cast<std::int64_t>(closure_number(task.closure))},
                        {"attempt", task.attempt},
                        {"worker", worker_}});
  const auto failure = [&](ErrorOrigin origin, ErrorCode code, const std::string& text) {
    if (code == ErrorCode::kCancelled && task.token->is_cancelled()) {
      return TaskOutcome(TaskStopped());
    }
    return TaskOutcome(TaskFailure{origin, code, text});
  };
  try {
    const StepDefinition& step = registry_.find(task.step);
    Nest result;
    const auto body = [&] { result = step.run(task.arguments, resources_); };
    if (task.closure == WorkerTask::kNoClosure) {
      body();
    } else {
      const ClosureContext context(task.closure, task.attempt, worker_, task.watermark, task.token,
                                   task.run);
      const ClosureScope scope(context);
      strategy_.run_closure(body);
    }
    return result;
  } catch (const OriginError& error) {
    return failure(error.origin(), error.code(), error.message());
  } catch (const Error& error) {
    return failure(ErrorOrigin::kUser, error.code(), error.message());
  } catch (const std::exception& error) {
    return failure(ErrorOrigin::kUser, ErrorCode::kInternal, error.what());
  } catch (...) {
    return failure(ErrorOrigin::kUser, ErrorCode::kInternal, "an exception of an unknown type");
  }
}

}  // namespace tutti::internal
