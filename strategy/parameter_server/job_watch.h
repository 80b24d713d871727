// A task's membership of a job with parameter servers: how the run ends, and who is lost.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/worker_group.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/run_end.h"

namespace tutti::internal {

/// Says good-bye when it ends: a chief's tells workers and servers that all is done, or, when an
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
  [[nodiscard]] std::shared_ptr<void> when_worker_lost(int worker, Lost lost) {
    return when_task_lost({"worker", worker}, std::move(lost));
  }
  [[nodiscard]] std::shared_ptr<void> when_server_lost(int server, Lost lost) {
    return when_task_lost({"ps", server}, std::move(lost));
  }
  [[nodiscard]] std::shared_ptr<void> when_over(std::function<void(const std::string& why)> over);
  /// Of tasks that serve. It ends, too, when nobody who has work for them comes within `patience`.
  RunEnd wait_for_end(Duration patience);
  /// Of tasks without a coordinator: until servers that were lost, or belong to a run that was, are
  /// there again. Throws kUnavailable when the run ends, kDeadlineExceeded naming the servers.
  void wait_for_servers(Duration patience);
  void leave();

 private:
  class Subscription;
  using TaskName = std::pair<std::string, int>;
  std::shared_ptr<void> when_task_lost(const TaskName& task, Lost lost);
  void tell(const Verdict& verdict, const std::optional<RunEnd>& end);

  const std::string who_;
  const bool has_coordinator_;
  Mutex mutex_;
  CondVar changed_;
  RunVerdicts verdicts_ TUTTI_GUARDED_BY(mutex_);
  Mutex told_mutex_;  // held while somebody is told
  std::map<TaskName, Lost> lost_ TUTTI_GUARDED_BY(told_mutex_);
  std::function<void(const std::string&)> over_ TUTTI_GUARDED_BY(told_mutex_);
  ControlPlane plane_;  // last: it calls this
};

}  // namespace tutti::internal
