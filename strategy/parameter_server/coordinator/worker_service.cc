// Tasks by client and number, their cancellation and answers.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_service.h"

#include <vector>

namespace tutti::internal {

WorkerService::WorkerService(int worker, CoordinatedStrategy& strategy,
                             const StepRegistry& registry)
    : worker_(worker),
      registry_(registry),
      runner_(std::make_unique<TaskRunner>(worker, strategy, registry)) {}

WorkerService::~WorkerService() { runner_.reset(); }

void WorkerService::take(std::shared_ptr<RpcCall> call) {
  WorkerRequest request = decode_worker_request(call->request());
  if (auto* run_task = std::get_if<RunTask>(&request)) {
    return run(call, std::move(*run_task));
  }
  if (const auto* hello = std::get_if<WorkerHello>(&request)) return greet(*call, *hello);
  if (const auto* cancelled = std::get_if<CancelTask>(&request)) {
    cancel({call->peer().client, cancelled->call});
  } else if (const auto* recalled = std::get_if<RecallTask>(&request)) {
    runner_->recall(recalled->closure, recalled->attempt);
  } else {
    runner_->release(std::get<ReleaseValue>(request).handle);
  }
  call->reply({});
}

void WorkerService::greet(RpcCall& call, const WorkerHello& hello) {
  StepRegistry::require_same(registry_.text(), concat("worker ", worker_), hello.steps,
                             call.peer().to_string());
  call.reply({});
}

void WorkerService::run(const std::shared_ptr<RpcCall>& call, RunTask request) {
  const Key key(call->peer().client, request.call);
  WorkerTask& task = request.task;
  task.watermark = watermark_;
  task.token = std::make_shared<CancellationToken>();
  {
    MutexLock lock(mutex_);
    tokens_[key] = task.token;
  }
  watermark_->raise(request.finished_below);
  runner_->start(std::move(task),
                 [this, key, call](const TaskOutcome& outcome) { answer(key, *call, outcome); });
}

void WorkerService::cancel(const Key& key) {
  std::shared_ptr<CancellationToken> token;
  {
    MutexLock lock(mutex_);
    const auto found = tokens_.find(key);
    if (found != tokens_.end()) token = found->second;
  }
  if (token != nullptr) token->cancel();
}

void WorkerService::answer(const Key& key, RpcCall& call, const TaskOutcome& outcome) {
  {
    MutexLock lock(mutex_);
    tokens_.erase(key);
  }
  try {
    call.reply(encode(outcome));
  } catch (const Error& error) {
    call.reply(encode(TaskFailure{ErrorOrigin::kUser, error.code(),
                                  concat("its result cannot be sent: ", error.message())}));
  }
}

void WorkerService::client_left(const RpcPeer& peer) {
  std::vector<std::shared_ptr<CancellationToken>> tokens;
  {
    MutexLock lock(mutex_);
    std::erase_if(tokens_, [&](const auto& each) {
      if (each.first.first != peer.client) return false;
      tokens.push_back(each.second);
      return true;
    });
  }
  for (const auto& token : tokens) token->cancel();
}

}  // namespace tutti::internal
