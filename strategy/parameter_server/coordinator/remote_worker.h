// A worker in another process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/worker_link.h"

namespace tutti::internal {

struct RemoteWorkerOptions {
  int worker = 0;
  /// Opens a connection; called again, on the link's thread, after one was lost. What it throws is
  /// logged, now and then, and it is called again.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// StepRegistry::text(), asked for each connection. A worker with other steps is never alive.
  std::function<std::string()> steps = {};
  /// Calls give_up() when the job finds out that the worker is gone, as long as what it returns
  /// lives; empty: nobody does.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;
  std::function<std::shared_ptr<void>(Lost)> when_lost = {};
  Duration between_tries = std::chrono::milliseconds(200);
  Duration hello_timeout = std::chrono::seconds(30);
};

/// Calls go out at once; a thread waits for their answers in order. A broken connection, as the
/// client tells it, is the end of the worker's life: the oldest task is reported lost, the others
/// as not started. Threads: as WorkerLink.
class RemoteWorker final : public WorkerLink {
 public:
  explicit RemoteWorker(RemoteWorkerOptions options);
  ~RemoteWorker() override;

  void start(WorkerTask task, Done done) override;
  bool recall(std::uint64_t number, int attempt) override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override;
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  std::optional<Error> refusal() const override;
  /// The job found out that the worker is gone, of which this was the life or a later one.
  void give_up(std::uint64_t incarnation, const Error& error);

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
  void begin_greeting(std::shared_ptr<RpcClient> client);
  void greet(RpcClient& client);
  void complain(const Error& error);
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
  std::shared_ptr<RpcClient> greeted_ TUTTI_GUARDED_BY(mutex_);  // before it is client_
  std::deque<Sent> sent_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t next_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> loss_ TUTTI_GUARDED_BY(mutex_);  // of the present connection
  std::optional<Error> refusal_ TUTTI_GUARDED_BY(mutex_);
  // Of the thread.
  std::string last_complaint_;
  TimePoint complain_at_ = {};
  bool was_lost_ = false;
  std::shared_ptr<void> subscription_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
