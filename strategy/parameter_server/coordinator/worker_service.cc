// Tasks in their order, their cancellation and answers.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_service.h"

#include <utility>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

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
