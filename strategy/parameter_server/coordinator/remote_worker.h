// A worker in another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/worker_link.h"

namespace tutti::internal {

struct RemoteWorkerOptions {
  int worker = 0;
  /// Opens a connection; called again, on the link's thread, after one was lost. What it throws is
  /// logged when it changes, and it is called again.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// StepRegistry::text(), asked for each connection. A worker with other steps is never alive.
  std::function<std::string()> steps = {};
  Duration between_tries = std::chrono::milliseconds(200);
  Duration hello_timeout = std::chrono::seconds(30);
  Duration recall_timeout = std::chrono::seconds(5);
};

/// Calls go out at once; a thread waits for their answers in order. A broken connection, as the
/// client tells it, is the end of the worker's life: the oldest task is reported lost, the others
/// as not started. Threads: as WorkerLink.
class RemoteWorker final : public WorkerLink {
 public:
  explicit RemoteWorker(RemoteWorkerOptions options);
  ~RemoteWorker() override;

  void start(WorkerTask task, Done done) override;
  void recall(std::uint64_t number, int attempt) override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override;
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  /// The job found out that the worker is gone.
  void give_up(const Error& error);

 private:
  struct Sent {
    std::shared_ptr<RpcReply> reply = {};
    Done done = {};
    std::string name = {};
    std::uint64_t number = 0;
    int attempt = 0;
  };

  void run();
  bool open();
  void take_answers();
  void end_life(const Error& error);
  void tell_change();
  void send_unanswered(const Packet& packet);
  TaskOutcome lost(AttemptReport::Kind kind, const std::string& text) const;

  const RemoteWorkerOptions options_;
  Event stop_;
  std::atomic<bool> is_alive_{false};
  mutable Mutex mutex_;
  CondVar condition_;
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t next_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  std::string last_complaint_;  // of the thread
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
