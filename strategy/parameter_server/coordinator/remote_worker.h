// Link to a worker in another process, and to its replacement after a restart.
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
#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

struct RemoteWorkerOptions {
  int worker = 0;
  /// Opens a connection; called on the link's thread, and called again after a loss or an error.
  /// Errors are logged at intervals.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// Registers a callback while the returned object exists. The callback is called when the job
  /// declares the worker lost. If when_lost is empty, only a broken connection reveals a loss.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;
  std::function<std::shared_ptr<void>(Lost)> when_lost = {};
  /// Returns StepRegistry::text(). A worker whose steps differ from these is treated as
  /// unavailable.
  std::function<std::string()> steps = {};
};

/// Link to a worker in another process. A thread connects to the worker and sends a hello. A broken
/// connection counts as the end of the process: the oldest unanswered task is reported as lost, the
/// later ones as not started, and the thread connects to the worker's next process. Thread-safe.
class RemoteWorker final : public WorkerLink {
 public:
  explicit RemoteWorker(RemoteWorkerOptions options);
  ~RemoteWorker() override;

  TaskOutcome run(const WorkerTask& task) override;
  void stop() override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override;
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  std::optional<Error> refusal() const override;

 private:
  struct Sent {
    std::uint64_t call = 0;
    std::string name = {};
    std::shared_ptr<RpcReply> reply = {};
  };
  /// A connection to one process of the worker, and the calls in progress there.
  struct Connection {
    std::unique_ptr<RpcClient> client = {};
    std::deque<Sent> sent = {};                    // guarded by mutex_
    std::optional<std::uint64_t> lost_first = {};  // oldest unanswered call; guarded by mutex_
  };

  void give_up(std::uint64_t incarnation, const Error& error);
  void connect_again_and_again();
  std::shared_ptr<Connection> open();
  void close(Connection& connection);
  void complain(const Error& error);
  void report_change();
  std::shared_ptr<Connection> connection() const;

  const RemoteWorkerOptions options_;
  const std::string name_;  // "worker 1"
  Event stop_;
  std::atomic<bool> is_alive_{false};  // atomic, because callers read it with their own locks held
  std::atomic<std::uint64_t> next_call_{0};
  mutable Mutex mutex_;
  // connection_ is set once the worker has accepted the hello; until then, the connection is stored
  // in greeted_.
  std::shared_ptr<Connection> connection_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<Connection> greeted_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> loss_ TUTTI_GUARDED_BY(mutex_);  // reason to close the connection
  // Reason why the last connection or connection attempt ended.
  std::optional<Error> why_gone_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  // Members used only by `thread_`.
  bool was_lost_ = false;
  std::string last_complaint_;
  TimePoint complain_at_ = {};
  std::shared_ptr<void> subscription_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
