// Implementation of Session: connections to tasks, runs, and values that tasks keep for a session.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "strategy/parameter_server/session/task_program.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/session/session.h"

namespace tutti::internal {

/// Location of an operation or a value: a task, and the device that the device scope names.
struct TaskPlace {
  Task task = {};
  std::string device = {};  // "/device:CPU:1", or ""
  DeviceSpec spec = {};     // task and device
};

/// Program of one task in a run, and the arguments of this run.
struct TaskPart {
  TaskProgram program = {};
  TaskRequest request = {};  // request with the arguments
};

/// Implementation of Session. Thread-safe.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  SessionCore(std::string target, SessionOptions options);
  /// Throws the same errors as the constructor of Session.
  void connect();
  ~SessionCore();

  const std::string& target() const { return target_; }
  const ClusterSpec& cluster() const { return cluster_; }
  const std::vector<std::string>& devices_of(const Task& task) { return link(task).devices; }
  /// Returns the place that a device scope names. A scope with a job but no task index names the
  /// job's first task; a scope with neither names the target's task. Throws kInvalidArgument,
  /// listing the tasks, if the cluster does not have the task.
  std::shared_ptr<const TaskPlace> place(const DeviceSpec& scope) const;

  /// Runs all parts, waits until they have finished, and returns the run's number. Throws the first
  /// error that was not caused by an error in another part.
  std::uint64_t run(std::map<Task, TaskPart> parts);
  Tensor fetch(const Task& task, std::uint64_t run, ValueNumber value);
  /// Makes the task drop a value when the task receives its next run.
  void release(const Task& task, std::uint64_t run, ValueNumber value) noexcept;
  std::vector<SessionTransfer> transfers();

  /// Records a variable, so that errors can name it if its task is lost. Throws kAlreadyExists for
  /// a duplicate name.
  void add_variable(const std::string& name, const Task& task);
  void remove_variable(const std::string& name);

 private:
  struct Link {
    std::shared_ptr<RpcClient> client = {};
    std::vector<std::string> devices = {};
    // Guarded by mutex_.
    std::set<std::string> programs = {};  // signatures of the programs that were sent
    std::vector<std::pair<std::uint64_t, ValueNumber>> released = {};  // run, value
  };
  TaskRequest new_request() const;
  using Counted = std::pair<std::uint64_t, std::uint64_t>;  // values, bytes
  std::shared_ptr<RpcClient> connect_to(const std::string& target, const MemberTask& server,
                                        TimePoint deadline) const;
  void open(const Task* task, std::shared_ptr<RpcClient> client);
  Link& link(const Task& task);
  void require_connected(const Task& task);
  std::shared_ptr<RpcReply> start(const Task& task, std::uint64_t number, TaskPart& part)
      TUTTI_REQUIRES(mutex_);
  void count(const std::string& from, const std::string& to, const Tensor& value)
      TUTTI_REQUIRES(mutex_);
  TimePoint deadline() const;
  std::optional<std::string> why_lost(const Task& task, const Link& link) const;
  /// Returns the error, with any lost tasks and their variables added to its message.
  Error explained(const Error& error);
  void announce_return() noexcept;

  const std::string target_;
  const SessionOptions options_;
  const std::uint64_t session_;
  // Set by connect(), except for the guarded members of a Link.
  ClusterSpec cluster_;
  Task own_task_;  // task at the address in target_
  std::map<Task, Link> links_;

  mutable Mutex mutex_;
  std::uint64_t last_run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Task> variables_ TUTTI_GUARDED_BY(mutex_);
  bool has_lost_a_task_ TUTTI_GUARDED_BY(mutex_) = false;
  std::map<std::pair<std::string, std::string>, Counted> counted_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
