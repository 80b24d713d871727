// Implements WorkerResourceTable, TaskRunner and WorkerService.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_service.h"

#include <utility>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {

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
  Made made = make(handle);  // may be slow, for example when reading files
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
                           "): could not be created on worker ", worker_, ": ", error.message()));
  }
  return made;
}

void WorkerResourceTable::release(const PerWorkerHandle& handle) {
  Made released;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = made_.find({handle.id, handle.instance});
  if (found == made_.end()) return;
  released = std::move(found->second);
  made_.erase(found);
}

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
  TaskOutcome outcome = outcome_of(task);
  MutexLock lock(mutex_);
  running_.clear();
  ended_.notify_one();
  return outcome;
}

TaskOutcome TaskRunner::outcome_of(const WorkerTask& task) {
  using Kind = AttemptReport::Kind;
  if (task.token->is_cancelled()) {
    return AttemptReport{Kind::kNotStarted, worker_, ErrorOrigin::kWorker, ErrorCode::kCancelled,
                         "the closure was cancelled before it began"};
  }
  const TraceSpan span("closure", "coordinator",
                       {{"number", static_cast<std::int64_t>(closure_number(task.closure))},
                        {"attempt", task.attempt},
                        {"worker", worker_}});
  const auto failure = [&](ErrorOrigin origin, ErrorCode code, const std::string& text) {
    const bool is_stopped = code == ErrorCode::kCancelled && task.token->is_cancelled();
    return AttemptReport{is_stopped ? Kind::kStopped : Kind::kFailed, worker_, origin, code, text};
  };
  try {
    const StepDefinition& step = registry_.find(task.step);
    Nest result;
    const ClosureContext context(task.closure, task.attempt, worker_, task.watermark, task.token,
                                 task.run);
    const ClosureScope scope(context);
    strategy_.run_closure([&] { result = step.run(task.arguments, resources_); });
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
    log_warning(concat("worker ", worker_, ": shutting down, still waiting for ", runner_.doing()));
  }
  thread_->join();
}

void WorkerService::take(std::shared_ptr<RpcCall> call) {
  WorkerRequest request = decode_worker_request(call->request());
  const v1::WorkerRequest& message = request.message;
  if (message.has_run()) {
    const v1::WorkerRequest::RunTask& run = message.run();
    watermark_->raise(run.finished_below());
    WorkerTask task{run.closure(),
                    run.attempt(),
                    run.run(),
                    run.step(),
                    std::move(request.arguments),
                    watermark_,
                    std::make_shared<CancellationToken>()};
    const MutexLock lock(mutex_);
    asked_.push_back({std::move(call), run.task(), std::move(task)});
    return changed_.notify_all();
  }
  if (message.has_hello()) {
    StepRegistry::require_same(registry_.text(), concat("worker ", worker_),
                               message.hello().steps(), call->peer().to_string());
  } else if (message.has_cancel()) {
    cancel(call->peer().client, message.cancel().task());
  } else {
    runner_.release(handle_of(message.release().handle()));
  }
  call->reply({});
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
      answer = encode(
          AttemptReport{AttemptReport::Kind::kFailed, worker_, ErrorOrigin::kUser, error.code(),
                        concat("the result of the step cannot be sent: ", error.message())});
    }
    next.call->reply(std::move(answer));
    const MutexLock lock(mutex_);
    asked_.pop_front();
  }
}

}  // namespace tutti::internal
