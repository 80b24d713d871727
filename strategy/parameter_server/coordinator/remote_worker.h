// A worker in another process, whichever process of that task lives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cluster/rpc/rpc_client.h"
#include "strategy/parameter_server/coordinator/worker_link.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

struct RemoteWorkerOptions {
  int worker = 0;
  /// Opens a connection; called again, on the link's thread, after one was lost. What it throws is
  /// logged, now and then, and it is called again.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// Calls its argument when the job finds out that the worker is gone, as long as what it returns
  /// lives; empty: the connection alone shows that.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;
  std::function<std::shared_ptr<void>(Lost)> when_lost = {};
  /// StepRegistry::text(), asked for each connection. A worker with other steps is never alive.
  std::function<std::string()> steps = {};
};

/// A thread connects to the worker, greets it, and waits for the answers to its tasks, which go out
/// at once; when the worker is lost it connects to the next process. A broken connection, as the
/// client reports it, is the end of that process: the oldest task is reported lost, the others as
/// not started. Threads: as WorkerLink.
class RemoteWorker final : public WorkerLink {
 public:
  explicit RemoteWorker(RemoteWorkerOptions options);
  ~RemoteWorker() override;

  void start(WorkerTask task, Done done) override;
  void recall(std::uint64_t closure, int attempt) override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override;
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  std::optional<Error> refusal() const override;

 private:
  struct Sent {
    std::shared_ptr<RpcReply> reply = {};
    Done done = {};
    std::string name = {};
  };

  void give_up(std::uint64_t incarnation, const Error& error);
  void run();
  std::shared_ptr<RpcClient> open();
  void work(std::shared_ptr<RpcClient> client);
  void deliver_answers(const RpcClient& client);
  std::shared_ptr<RpcReply> next_answer(const RpcClient& client);
  void complain(const Error& error);
  void report_change();
  std::shared_ptr<RpcClient> client() const;

  const RemoteWorkerOptions options_;
  const std::string name_;  // "worker 1"
  Event stop_;
  std::atomic<bool> is_alive_{false};  // read under locks of callers: without mutex_
  std::atomic<std::uint64_t> next_call_{0};
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);   // of a worker that was greeted
  std::shared_ptr<RpcClient> greeted_ TUTTI_GUARDED_BY(mutex_);  // before it is client_
  std::optional<Error> loss_ TUTTI_GUARDED_BY(mutex_);      // ends this connection, or its greeting
  std::optional<Error> why_gone_ TUTTI_GUARDED_BY(mutex_);  // the last connection, or the last try
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  // Of the thread.
  bool was_lost_ = false;
  std::string last_complaint_;
  TimePoint complain_at_ = {};
  std::shared_ptr<void> subscription_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
