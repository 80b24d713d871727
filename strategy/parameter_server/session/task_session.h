// One session on one task: its operations, one after the other, and values from other tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/server/server_store.h"
#include "strategy/parameter_server/session/task_request.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"
#include "tutti/strategy/parameter_server/session/task_steps.h"

namespace tutti::internal {

/// A value, or why there is none.
struct OpOutcome {
  Nest value = {};
  std::optional<Error> error = {};
};

/// What a task has, whatever the session. Outlives its sessions. Threads: any.
struct TaskParts {
  Task task = {};
  VariableStore& store;
  const StepRegistry& steps;
  /// The way to another task of the cluster; opened when first asked for. Throws as
  /// RpcClient::connect(), kInvalidArgument for a task that the cluster has not.
  std::function<std::shared_ptr<RpcClient>(const Task&)> peer = {};
};

/// A value that operations here need and that is on another task is asked for once, and kept until
/// the session releases it. Threads: any, all functions.
class TaskSession {
 public:
  /// `timeout`: for values of other tasks.
  TaskSession(const TaskParts& parts, std::uint64_t session, Duration timeout);
  /// end(), then waits for the operation that is being done.
  ~TaskSession();

  /// An operation; `call` is answered when it is done. One that came before is not done again.
  void post(TaskRequest request, std::shared_ptr<RpcCall> call);
  /// Answers `call` when the value is there.
  void fetch(const TaskRequest& request, std::shared_ptr<RpcCall> call);
  void release(const TaskRequest& request);
  /// A list of (job, task, values, bytes): what came from there.
  Nest transfers() const;
  /// Values of this task and of others.
  std::size_t num_held() const;
  /// Nothing more is done, and whoever waits gets an error.
  void end();
  bool has_ended() const { return has_ended_.load(); }

 private:
  /// Called once, by the thread that sets the value, or at once; without a lock.
  using Told = std::function<void(const OpOutcome& outcome)>;
  /// What an operation here gives, or another task has.
  struct Value {
    std::optional<OpOutcome> outcome = {};
    std::vector<Told> asked = {};          // those who wait for it
    std::shared_ptr<RpcReply> reply = {};  // of the task that has it
  };
  struct Counted {
    std::uint64_t values = 0, bytes = 0;
  };
  void set(std::uint64_t op, OpOutcome outcome);
  void when_there(std::uint64_t op, Told told);
  void run();
  OpOutcome outcome_of(const TaskRequest& request);
  Nest done(const TaskRequest& request);
  std::vector<Nest> values_of(const TaskRequest& request);
  void ask_for(const ValueAddress& address);
  Nest value_at(const ValueAddress& address, TimePoint deadline);
  OpOutcome moved(const ValueAddress& address, RpcReply& reply, TimePoint deadline);
  Nest run_step(const TaskRequest& request, std::vector<Nest> arguments);
  void update_variable(const TaskRequest& request, const std::vector<Nest>& gradients);
  OperationAnswer apply(Operation operation);
  std::string describe(const TaskRequest& request) const;

  const TaskParts& parts_;
  const std::uint64_t session_;
  const Duration timeout_;
  std::atomic<bool> has_ended_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<TaskRequest> waiting_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_op_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool stops_ TUTTI_GUARDED_BY(mutex_) = false;
  std::map<ValueAddress, Value> values_ TUTTI_GUARDED_BY(mutex_);
  std::map<Task, Counted> counted_ TUTTI_GUARDED_BY(mutex_);  // by where it came from
  std::uint64_t next_change_ = 0;                             // of the thread
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
