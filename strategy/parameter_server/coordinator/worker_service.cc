// Per-worker values, outcomes of tasks, and the queue of tasks from another process.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_service.h"

#include <utility>

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

WorkerService::WorkerService(int worker, CoordinatedStrategy& strategy,
                             const StepRegistry& registry)
    : worker_(worker),
      registry_(registry),
      runner_(worker, strategy, registry),
      thread_(Executor::system().start(concat("ps-worker-", worker), [this] { work(); })) {}

WorkerService::~WorkerService() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    for (const Asked& each : asked_) each.task.token->cancel();
    changed_.notify_all();
  }
  while (!ended_.wait_until(deadline_after(Clock::system().now(), durations::kSayAgainEvery))) {
    log_warning(
        concat("worker ", worker_, ": is shut down, and still waits for ", runner_.doing()));
  }
  thread_->join();
}

void WorkerService::take(std::shared_ptr<RpcCall> call) {
  WorkerRequest request = decode_worker_request(call->request());
  if (auto* run = std::get_if<RunTask>(&request)) {
    run->task.watermark = watermark_;
    run->task.token = std::make_shared<CancellationToken>();
    watermark_->raise(run->finished_below);
    const MutexLock lock(mutex_);
    asked_.push_back({std::move(call), run->call, std::move(run->task)});
    return changed_.notify_all();
  }
  if (const auto* hello = std::get_if<WorkerHello>(&request)) return greet(*call, *hello);
  if (const auto* cancelled = std::get_if<CancelTask>(&request)) {
    cancel(call->peer().client, cancelled->call);
  } else {
    runner_.release(std::get<ReleaseValue>(request).handle);
  }
  call->reply({});
}

void WorkerService::greet(RpcCall& call, const WorkerHello& hello) {
  StepRegistry::require_same(registry_.text(), concat("worker ", worker_), hello.steps,
                             call.peer().to_string());
  call.reply({});
}

void WorkerService::client_left(const RpcPeer& peer) { cancel(peer.client, std::nullopt); }

void WorkerService::cancel(std::uint64_t client, std::optional<std::uint64_t> number) {
  const MutexLock lock(mutex_);
  for (const Asked& each : asked_) {
    const bool is_its = each.call->peer().client == client;
    if (is_its && each.number == number.value_or(each.number)) each.task.token->cancel();
  }
}

void WorkerService::work() {
  for (;;) {
    Asked next;
    {
      const MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return is_ending_ || !asked_.empty();
      });
      if (is_ending_) return ended_.set();
      next = asked_.front();
    }
    const TaskOutcome outcome = runner_.run(next.task);
    Packet answer;
    try {
      answer = encode(outcome);
    } catch (const Error& error) {
      answer = encode(TaskFailure{ErrorOrigin::kUser, error.code(),
                                  concat("its result cannot be sent: ", error.message())});
    }
    next.call->reply(std::move(answer));
    const MutexLock lock(mutex_);
    asked_.pop_front();
  }
}

}  // namespace tutti::internal
