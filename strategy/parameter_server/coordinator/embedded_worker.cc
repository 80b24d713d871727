// Each life is a TaskRunner; the former ones stay until their last step has returned.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/embedded_worker.h"

#include <utility>

namespace tutti::internal {

EmbeddedWorker::EmbeddedWorker(int worker, CoordinatedStrategy& strategy,
                               const StepRegistry& registry)
    : worker_(worker),
      strategy_(strategy),
      registry_(registry),
      life_(std::make_shared<TaskRunner>(worker, strategy, registry)) {}

EmbeddedWorker::~EmbeddedWorker() = default;

void EmbeddedWorker::start(WorkerTask task, Done done) {
  std::shared_ptr<TaskRunner> life;
  {
    MutexLock lock(mutex_);
    life = life_;
  }
  life->start(std::move(task), std::move(done));
}

void EmbeddedWorker::recall(std::uint64_t number, int attempt) {
  std::shared_ptr<TaskRunner> life;
  {
    MutexLock lock(mutex_);
    life = life_;
  }
  (void)life->recall(number, attempt);
}

void EmbeddedWorker::watch(std::function<void()> on_change) {
  MutexLock lock(mutex_);
  on_change_ = std::move(on_change);
}

void EmbeddedWorker::release(const PerWorkerHandle& handle) {
  MutexLock lock(mutex_);
  life_->release(handle);
}

std::string EmbeddedWorker::doing() const {
  MutexLock lock(mutex_);
  return is_alive() ? life_->doing() : "dead";
}

void EmbeddedWorker::tell_change() {
  std::function<void()> on_change;
  {
    MutexLock lock(mutex_);
    on_change = on_change_;
  }
  if (on_change) on_change();
}

void EmbeddedWorker::kill(const std::string& why) {
  std::shared_ptr<TaskRunner> life;
  {
    MutexLock lock(mutex_);
    if (!is_alive_.exchange(false)) return;
    life = life_;
  }
  life->die(ErrorCode::kUnavailable, concat(strategy_.worker_name(worker_), ": ", why));
  tell_change();
}

void EmbeddedWorker::restart() {
  std::vector<std::shared_ptr<TaskRunner>> ended;  // joined without the lock
  {
    MutexLock lock(mutex_);
    if (is_alive()) return;
    former_lives_.push_back(std::move(life_));
    life_ = std::make_shared<TaskRunner>(worker_, strategy_, registry_);
    is_alive_.store(true);
    std::erase_if(former_lives_, [&](std::shared_ptr<TaskRunner>& each) {
      if (!each->has_ended()) return false;
      ended.push_back(each);
      return true;
    });
  }
  tell_change();
}

}  // namespace tutti::internal
