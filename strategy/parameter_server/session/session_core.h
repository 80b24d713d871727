// What is behind a Session: connections to all tasks, operations under way, values that are held.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "strategy/parameter_server/session/task_request.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/session/session.h"

namespace tutti::internal {

/// A value that a task keeps for the session; its end tells the tasks that nobody needs it.
struct HeldValue {
  std::weak_ptr<SessionCore> core = {};
  ValueAddress address = {};
  std::set<Task> moved_to = {};  // guarded by the core
  HeldValue() = default;
  HeldValue(const HeldValue&) = delete;
  HeldValue& operator=(const HeldValue&) = delete;
  ~HeldValue();
};

/// Requests go out in the order of the calls. Threads: any, all functions.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  /// A task, and what of its devices the scope names: "/device:CPU:1", or "".
  struct Place {
    Task task = {};
    std::string device = {};
  };
  SessionCore(std::string target, SessionOptions options);
  /// Throws as Session.
  void connect();
  /// Waits for what was asked; an error that nobody has seen is logged.
  ~SessionCore();

  const std::string& target() const { return target_; }
  const ClusterSpec& cluster() const { return cluster_; }
  const TaskWelcome& welcome_of(const Task& task) const;
  /// By the device scopes of this thread. Throws kInvalidArgument listing the tasks.
  Place place(const char* who) const;

  TaskValue post(TaskRequestKind kind, const Place& place, const std::string& name,
                 const std::vector<TaskInput>& inputs, Nest details = {},
                 const std::vector<std::string>& also_changes = {});
  TaskVariable make_variable(const Place& place, const std::string& name, const Tensor& initial);
  TaskValue read(const TaskVariable& variable);
  /// An operation that changes the variable, and those named in `also`.
  void change(TaskRequestKind kind, const TaskVariable& variable,
              const std::vector<TaskInput>& inputs, Nest details,
              const std::vector<std::string>& also = {});
  Nest fetch(const ValueAddress& address);
  void release(const HeldValue& held) noexcept;
  void wait();
  std::vector<SessionTransfer> transfers();

 private:
  struct UnderWay {
    std::shared_ptr<RpcReply> reply = {};
    std::vector<std::shared_ptr<HeldValue>> holds = {};
  };
  struct Link {
    std::shared_ptr<RpcClient> client = {};
    TaskWelcome welcome = {};
    std::deque<UnderWay> under_way = {};  // guarded by mutex_
  };
  using Counted = std::pair<std::uint64_t, std::uint64_t>;  // values, bytes
  std::shared_ptr<RpcClient> connect_to(const std::string& target, const MemberTask& server,
                                        TimePoint deadline) const;
  void open(const Task* task, std::shared_ptr<RpcClient> client);
  Link& link(const Task& task);
  TaskArgument argument_of(const TaskInput& input, const Task& task) TUTTI_REQUIRES(mutex_);
  void sweep(std::vector<UnderWay>& swept) TUTTI_REQUIRES(mutex_);
  void take_answer(const UnderWay& done, TimePoint deadline);
  void make_room(Link& link);
  void count(const std::string& from, const std::string& to, const Nest& value)
      TUTTI_REQUIRES(mutex_);
  TimePoint deadline() const;
  std::optional<std::string> why_lost(const Task& task, const Link& link) const;
  /// With the tasks that were lost, and what was lost with them, if that is why.
  Error explained(const Error& error);
  void announce_return() noexcept;

  const std::string target_;
  const SessionOptions options_;
  const std::uint64_t session_;
  // Set by connect(), but for Link::under_way.
  ClusterSpec cluster_;
  Task own_task_;  // the target's
  std::map<Task, Link> links_;

  Mutex waiting_;  // held by who waits for all
  mutable Mutex mutex_;
  std::uint64_t last_op_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Task> variables_ TUTTI_GUARDED_BY(mutex_);
  bool has_lost_a_task_ TUTTI_GUARDED_BY(mutex_) = false;
  /// Of variables that have not changed since.
  std::map<std::string, TaskInput> reads_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, Counted> counted_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> first_error_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
