// A worker in another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "strategy/parameter_server/coordinator/task_link.h"
#include "strategy/parameter_server/coordinator/worker_link.h"

namespace tutti::internal {

struct RemoteWorkerOptions {
  TaskLinkOptions link = {};
  int worker = 0;
  /// StepRegistry::text(), asked for each connection. A worker with other steps is never alive.
  std::function<std::string()> steps = {};
};

/// Calls go out at once; the link's thread waits for their answers. A broken connection, as the
/// client tells it, is the end of the worker's life: the oldest task is reported lost, the others
/// as not started. Threads: as WorkerLink.
class RemoteWorker final : public WorkerLink, public TaskLink {
 public:
  explicit RemoteWorker(RemoteWorkerOptions options);
  ~RemoteWorker() override { end(); }

  void start(WorkerTask task, Done done) override;
  void recall(std::uint64_t closure, int attempt) override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override { TaskLink::watch(std::move(on_change)); }
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  std::optional<Error> refusal() const override;

 private:
  struct Sent {
    std::shared_ptr<RpcReply> reply = {};
    Done done = {};
    std::string name = {};
  };

  void greet(RpcClient& client) override;
  void work(RpcClient& client) override;
  void ended(std::shared_ptr<RpcClient> client, const Error& why) override;
  std::shared_ptr<RpcClient> client() const;
  std::shared_ptr<RpcReply> next_answer();

  const int worker_;
  const std::function<std::string()> steps_;
  std::atomic<bool> is_alive_{false};  // asked under locks: without the link's
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> next_call_{0};
  bool was_lost_ = false;  // of the thread
};

}  // namespace tutti::internal
