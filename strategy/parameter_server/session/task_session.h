// One session on one task: runs programs, keeps values, and sends values to other tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/session/program_executor.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

/// Parts of a task that its sessions share. Must outlive them. Thread-safe.
struct TaskParts {
  Task task = {};
  ProgramExecutor executor = {};
  /// Returns the connection to another task of the cluster, opened on the first call. Throws the
  /// same errors as RpcClient::connect(), and kInvalidArgument if the cluster does not have the
  /// task.
  std::function<std::shared_ptr<RpcClient>(const Task&)> peer = {};
};

/// One session on a task. Runs are concurrent: each has its own thread, which executes the
/// operations in the program's order. To run sequentially, a client waits for each run to end.
/// Thread-safe.
class TaskSession {
 public:
  /// `number` is this session's number. `timeout` limits the wait for values from other tasks.
  TaskSession(TaskParts& parts, std::uint64_t number, Duration timeout);
  /// Calls end(), then waits for the running operations.
  ~TaskSession();

  /// Executes the request's message.run(), and replies to `call` once the run has ended.
  void run(TaskRequest request, std::shared_ptr<RpcCall> call);
  /// Replies to `call` once the value exists.
  void fetch(const ValueAddress& address, std::shared_ptr<RpcCall> call);
  /// Returns the traffic from each task, as a list of (job, index, number of values, bytes).
  Nest transfers() const;
  /// Returns the number of kept values.
  std::size_t num_held() const;
  /// Prevents further runs; waiting callers receive an error.
  void end();
  /// Returns true if end() has been called and no thread is still executing a run.
  bool has_ended() const;

 private:
  struct Held {
    Tensor value = {};                                   // undefined until it is created
    std::vector<std::shared_ptr<RpcCall>> fetches = {};  // calls that wait for the value
    std::size_t num_receivers = 0;  // receivers without the value; 0: kept until released
  };
  struct Run {
    std::unordered_map<ValueNumber, Held> values = {};
    std::set<ValueNumber> released = {};  // released before the run ended
    bool has_ended = false;
  };
  struct Program {
    TaskProgram message = {};
    std::vector<std::vector<ValueNumber>> last_uses = {};
    std::map<ValueNumber, std::size_t> kept = {};  // number of receivers of each kept value
  };
  struct Job {
    TaskRequest request = {};
    std::shared_ptr<const Program> program = {};
    std::shared_ptr<RpcCall> call = {};
  };
  struct Counted {
    std::uint64_t values = 0, bytes = 0;
  };
  class Execution;

  void work();
  void execute(const Job& job);
  std::shared_ptr<const Program> find_program(const v1::SessionRequest::Run& run)
      TUTTI_REQUIRES(mutex_);
  void release(const v1::SessionRequest::Run& run, std::vector<Tensor>& released)
      TUTTI_REQUIRES(mutex_);
  void keep(std::uint64_t run, ValueNumber number, const Tensor& value, std::size_t num_receivers);
  void note_fetched(std::uint64_t run, ValueNumber number, std::size_t times)
      TUTTI_REQUIRES(mutex_);
  void end_run(std::uint64_t number, bool has_failed);
  Tensor own_value(const ValueAddress& address) const;

  TaskParts& parts_;
  const std::uint64_t number_;
  const Duration timeout_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::shared_ptr<const Program>> programs_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Run> runs_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::map<Task, Counted> counted_ TUTTI_GUARDED_BY(mutex_);  // keyed by sending task
  std::deque<Job> waiting_ TUTTI_GUARDED_BY(mutex_);
  bool stops_ TUTTI_GUARDED_BY(mutex_) = false;
  std::size_t num_idle_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::size_t num_working_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Thread>> threads_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
