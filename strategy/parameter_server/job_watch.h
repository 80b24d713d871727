// Membership of a task in a job with parameter servers: lost tasks, and the end of the run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/control/member.h"
#include "cluster/worker_group.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Exit code of this process, and the reason if it is not 0.
struct RunEnd {
  int code = 0;
  std::string text = {};
  bool operator==(const RunEnd&) const = default;
};

/// Rules that decide which lost tasks end a run. The defaults describe a job with a coordinator:
/// only the loss of the chief ends the run.
struct RunRules {
  bool has_coordinator = true;
  /// A job without a coordinator is lost if any server (with its variables) is lost, or if fewer
  /// than `workers_needed` of `num_workers` workers are left.
  int num_workers = 0;
  int workers_needed = 0;
  /// If true, a lost worker is restarted.
  bool workers_come_back = false;
};

/// Evaluator of the job's verdicts. Determines when this task has nothing left to do: when the run
/// is lost according to RunRules, when the tasks that assign or do the work have left, when this
/// process was declared lost, or when the control plane was lost. Two events have no effect:
/// verdicts older than a restart of this task, and the end of a task of an earlier, lost run, which
/// may happen after this run began. Value type.
class RunVerdicts {
 public:
  /// `self` holds the task, incarnation and pid of this process.
  explicit RunVerdicts(Member self, RunRules rules = {}) : self_(std::move(self)), rules_(rules) {}

  void take(const Verdict& verdict);
  const std::optional<RunEnd>& end() const { return end_; }
  /// Returns true while the chief is present; in a job without a coordinator, while any worker is.
  bool has_work() const;
  /// Returns true once this process has joined. Verdicts that arrive earlier are outdated.
  bool is_present() const { return is_present_; }
  /// Returns the servers, such as "ps 1", that are expected to be restarted, because they were lost
  /// or belong to a lost run.
  std::vector<std::string> awaited_servers() const;

 private:
  struct Peer {
    enum class State : std::uint8_t { kHere, kLeft, kLost };
    State state = State::kHere;
    Member process = {};
    std::uint64_t joined = 0;  // number of the kJoined verdict of `process`
  };
  bool is_run_lost(const std::string& job) const;
  int count(const std::string& job, Peer::State state) const;
  void end_if_workers_are_done();
  void end(const std::string& why);
  void end_well();

  Member self_;
  RunRules rules_;
  bool is_present_ = false;
  std::map<std::pair<std::string, int>, Peer> peers_ = {};  // keyed by job and index
  std::uint64_t last_loss_ = 0;  // number of the verdict that ended the last lost run
  std::optional<RunEnd> end_;
};

/// Subscription of a task to the job's verdicts. Its destructor leaves the job; on a chief, it also
/// ends the work of workers and servers, as a failure if an exception is being thrown. Thread-safe.
class JobWatch {
 public:
  /// Callback for a lost worker or server, called on one of the job's threads.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;

  /// Joins the job. The chief hosts the control server unless TUTTI_CONTROL names another server;
  /// other tasks wait for it. Throws the same errors as join_job().
  JobWatch(const ClusterSpec& cluster, const Task& self, const WorkerGroupOptions& options,
           RunRules rules = {});
  /// Overload for a task that joins through a WorkerGroup. The group passes verdicts to evaluate().
  JobWatch(const Task& self, const WorkerGroupOptions& options, RunRules rules);
  ~JobWatch();

  /// Evaluates a verdict. Returns true if the verdict ends the run.
  bool evaluate(const Verdict& verdict);

  /// Calls `lost` if the task is lost or leaves, or `over` if the run ends, while the returned
  /// object exists. The object's destructor waits for a running call.
  [[nodiscard]] std::shared_ptr<void> when_lost(const Task& task, Lost lost);
  [[nodiscard]] std::shared_ptr<void> when_over(std::function<void(const std::string& why)> over);
  /// Waits for the end of the run, or until every task that could assign work to this one has been
  /// absent for `patience`.
  RunEnd wait_for_end(Duration patience);
  /// For jobs without a coordinator: waits until all servers that were lost, or that belong to a
  /// lost run, have joined again. Throws kUnavailable if the run ends, and kDeadlineExceeded,
  /// naming the missing servers, after `patience`.
  void wait_for_servers(Duration patience);
  void leave();

 private:
  void notify(const Verdict& verdict, const std::optional<RunEnd>& end);

  const std::string who_;
  const bool has_coordinator_;
  Mutex mutex_;
  CondVar changed_;
  RunVerdicts verdicts_ TUTTI_GUARDED_BY(mutex_);
  Mutex told_mutex_;  // held during callbacks
  std::map<Task, Lost> lost_ TUTTI_GUARDED_BY(told_mutex_);
  std::function<void(const std::string&)> over_ TUTTI_GUARDED_BY(told_mutex_);
  ControlPlane plane_;  // destroyed first, because it calls this object
};

}  // namespace tutti::internal
