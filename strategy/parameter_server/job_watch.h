// A task's membership of a job with parameter servers: how the run ends, and who is lost.
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

/// The exit code of this process, and why where it is not 0.
struct RunEnd {
  int code = 0;
  std::string text = {};
  bool operator==(const RunEnd&) const = default;
};

/// Whose loss ends a run. Its defaults are those of a job with a coordinator: the chief's.
struct RunRules {
  bool has_coordinator = true;
  /// Without a coordinator: a server's, for its variables are gone; a worker's, when fewer than
  /// `workers_needed` of `num_workers` are left.
  int num_workers = 0;
  int workers_needed = 0;
  /// Whether a worker that was lost is started again.
  bool workers_come_back = false;
};

/// Hears the job's verdicts one after the other and knows when this task has nothing to do any
/// more: the run was lost, as the rules say; who gives or does the work has left; this process was
/// given up; nobody watches over the job. A task that was started again hears what was before it,
/// which ends nothing. Nor does the end of a task that was there when an earlier run was lost: it
/// ends with that run, perhaps later than this one began. A value.
class RunVerdicts {
 public:
  /// `self`: task, incarnation and pid.
  explicit RunVerdicts(Member self, RunRules rules = {}) : self_(std::move(self)), rules_(rules) {}

  void take(const Verdict& verdict);
  const std::optional<RunEnd>& end() const { return end_; }
  /// The chief of a coordinator; without one, any worker.
  bool has_work() const;
  /// Whether what this process hears now is news.
  bool is_present() const { return is_present_; }
  /// Servers that were of this job and are to be started again, for they were lost or belong to a
  /// run that was: "ps 1".
  std::vector<std::string> awaited_servers() const;

 private:
  struct Peer {
    enum class State : std::uint8_t { kHere, kLeft, kLost };
    State state = State::kHere;
    Member process = {};
    std::uint64_t joined = 0;  // the verdict's number
  };
  bool is_run_lost(const std::string& job) const;
  int count(const std::string& job, Peer::State state) const;
  void end_if_workers_are_done();
  void end(const std::string& why);
  void end_well();

  Member self_;
  RunRules rules_;
  bool is_present_ = false;
  std::map<std::pair<std::string, int>, Peer> peers_ = {};  // by job and index
  std::uint64_t last_loss_ = 0;  // the number of the verdict by which a run was lost
  std::optional<RunEnd> end_;
};

/// Leaves the job when it ends: a chief's tells workers and servers that all is done, or, when an
/// exception ends it, that the run has failed. Threads: any, all functions.
class JobWatch {
 public:
  /// Told of a worker or server that is gone, by a thread of the job.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;

  /// The chief hosts the control server unless TUTTI_CONTROL says where it is; the others wait for
  /// it. Throws as join_job().
  JobWatch(const ClusterSpec& cluster, const Task& self, const WorkerGroupOptions& options,
           RunRules rules = {});
  /// Of a task that is a member by a WorkerGroup: hears what that tells it.
  JobWatch(const Task& self, const WorkerGroupOptions& options, RunRules rules);
  ~JobWatch();

  /// Returns whether the run ends by this verdict.
  bool hear(const Verdict& verdict);

  /// `lost` is called when a worker, a server, or the run, is lost, as long as the returned object
  /// lives; no call outlives it.
  [[nodiscard]] std::shared_ptr<void> when_lost(const Task& task, Lost lost);
  [[nodiscard]] std::shared_ptr<void> when_over(std::function<void(const std::string& why)> over);
  /// Of tasks that serve. It ends, too, when nobody who has work for them comes within `patience`.
  RunEnd wait_for_end(Duration patience);
  /// Of tasks without a coordinator: until servers that were lost, or belong to a run that was, are
  /// there again. Throws kUnavailable when the run ends, kDeadlineExceeded naming the servers.
  void wait_for_servers(Duration patience);
  void leave();

 private:
  void tell(const Verdict& verdict, const std::optional<RunEnd>& end);

  const std::string who_;
  const bool has_coordinator_;
  Mutex mutex_;
  CondVar changed_;
  RunVerdicts verdicts_ TUTTI_GUARDED_BY(mutex_);
  Mutex told_mutex_;  // held while somebody is told
  std::map<Task, Lost> lost_ TUTTI_GUARDED_BY(told_mutex_);
  std::function<void(const std::string&)> over_ TUTTI_GUARDED_BY(told_mutex_);
  ControlPlane plane_;  // last: it calls this
};

}  // namespace tutti::internal
