// Tasks by (client, call); answers go to whoever asked, and are kept for who asks again.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_service.h"

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
    return run(std::move(call), std::move(*run_task));
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

void WorkerService::run(std::shared_ptr<RpcCall> call, RunTask request) {
  const Key key(call->peer().client, request.call);
  WorkerTask& task = request.task;
  {
    MutexLock lock(mutex_);
    const auto found = asked_.find(key);
    if (found != asked_.end() && found->second.answer) return call->reply(*found->second.answer);
    if (found != asked_.end()) return found->second.waiting.push_back(std::move(call));
    task.watermark = watermark_;
    task.token = std::make_shared<CancellationToken>();
    asked_[key] = {task.token, {std::move(call)}, {}};
  }
  watermark_->raise(request.finished_below);
  runner_->start(std::move(task),
                 [this, key](const TaskOutcome& outcome) { answer(key, outcome); });
}

void WorkerService::cancel(const Key& key) {
  std::shared_ptr<CancellationToken> token;
  {
    MutexLock lock(mutex_);
    const auto found = asked_.find(key);
    if (found != asked_.end()) token = found->second.token;
  }
  if (token != nullptr) token->cancel();
}

void WorkerService::answer(const Key& key, const TaskOutcome& outcome) {
  Packet packet;
  try {
    packet = encode(outcome);
  } catch (const Error& error) {
    packet = encode(TaskFailure{ErrorOrigin::kUser, error.code(),
                                concat("its result cannot be sent: ", error.message())});
  }
  std::vector<std::shared_ptr<RpcCall>> waiting;
  {
    MutexLock lock(mutex_);
    const auto found = asked_.find(key);
    if (found == asked_.end()) return;  // the client left
    waiting.swap(found->second.waiting);
    found->second.answer = packet;
    answered_.push_back(key);
    if (answered_.size() > kMostAnswers) {
      asked_.erase(answered_.front());
      answered_.pop_front();
    }
  }
  for (const auto& call : waiting) call->reply(packet);
}

void WorkerService::client_left(const RpcPeer& peer) {
  std::vector<std::shared_ptr<CancellationToken>> tokens;
  {
    MutexLock lock(mutex_);
    std::erase_if(answered_, [&](const Key& key) { return key.first == peer.client; });
    std::erase_if(asked_, [&](const auto& each) {
      if (each.first.first != peer.client) return false;
      tokens.push_back(each.second.token);
      return true;
    });
  }
  for (const auto& token : tokens) token->cancel();
}

}  // namespace tutti::internal
