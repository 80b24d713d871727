// Values that a worker makes once, and the outcomes of tasks.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/task_runner.h"

#include <utility>

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

bool TaskRunner::runs_this_thread() { return is_thread_of_tasks; }

std::string TaskRunner::doing() const {
  MutexLock lock(mutex_);
  if (running_.empty()) return "nothing";
  return concat(running_, " for ", seconds_between(running_since_, Clock::system().now()), " s");
}

TaskOutcome TaskRunner::run(const WorkerTask& task) {
  {
    MutexLock lock(mutex_);
    ended_.wait_until(mutex_, TimePoint::max(),
                      [this]() TUTTI_REQUIRES(mutex_) { return running_.empty(); });
    running_ = task.name();
    running_since_ = Clock::system().now();
  }
  const bool was_thread_of_tasks = std::exchange(is_thread_of_tasks, true);
  TaskOutcome outcome = outcome_of(task);
  is_thread_of_tasks = was_thread_of_tasks;
  MutexLock lock(mutex_);
  running_.clear();
  ended_.notify_one();
  return outcome;
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
