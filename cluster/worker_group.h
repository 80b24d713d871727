// The workers of a job, connected: messages between all of them, and an alarm when one is gone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/control/join_job.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {

/// The tasks that train together (chief, then workers), seen from one of them. Made by all of them
/// at the start; a worker that is missing is named every 5 s. From then on a worker that dies,
/// stops or hangs ends everybody's collectives with an error that names it. Threads: any.
/// What strategies call is virtual, so that a program links gRPC only where it calls join().
class WorkerGroup {
 public:
  /// An empty cluster is this process alone. Throws kInvalidArgument for a task that does not
  /// train, and for what validate_cluster() refuses; kDeadlineExceeded naming the workers that did
  /// not come; as join_job().
  static std::shared_ptr<WorkerGroup> join(const ClusterResolver& resolver,
                                           const WorkerGroupOptions& options = {});
  /// Leaves the job; the process that hosts the control server waits a little for the others.
  virtual ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  int worker() const { return worker_; }
  int num_workers() const { return static_cast<int>(tasks_.size()); }
  /// "worker 2", as the cluster calls it.
  virtual std::string name_of(int worker) const;
  /// nullptr for a process alone, and for those that MPI connects over machines without
  /// TUTTI_CONTROL.
  ControlClient* control() const { return plane_.client.get(); }

  /// Whether this process takes the place of one that died after all had found out together what
  /// they remember(). Until then who is started again is connected as if it had not been there.
  /// Only in its first group: a process that makes several, one after the other, joins the later
  /// ones together with all other workers.
  bool is_replacement() const { return is_replacement_; }
  /// A call failed with `error`: whether the workers are to reconnect() and go on. True when the
  /// job finds, within `patience`, that since the last reconnect() a worker died, was stopped or
  /// got stuck, or a connection between two of them broke. A connection of this worker that ended
  /// is told to the job here, when it has had the time to find a death behind it. False when a
  /// worker failed by itself, and where MPI connects them, which nobody can come back to.
  virtual bool may_reconnect(const Error& error, Duration patience) const;
  /// Waits until all workers are here, those that were started again among them, if any, and
  /// connects them anew. Called by all, when all communicators are destroyed. Throws
  /// kDeadlineExceeded naming who is missing, kUnavailable when another worker is lost meanwhile,
  /// kFailedPrecondition when the others have given this process up, the control server is gone, or
  /// a worker that was started again is in an earlier strategy of the program than this one: then
  /// all processes have to end, and restart() together.
  virtual void reconnect(TimePoint deadline);
  /// Connects a replacement in a program that never calls reconnect(), where one loss ends all
  /// processes: waits until every worker that was connected has exited, and connects those that
  /// were started again. Returns false if the others reconnect(). Throws kDeadlineExceeded naming
  /// the workers that did not exit, or did not join, within `join_timeout` of the options.
  virtual bool restart();

  /// Tells the job how far this communicator's calls have come, as long as the returned object
  /// lives (which the communicator must outlive): a worker that does not come where the others wait
  /// is named in a warning on all of them. `name` is the same on all workers.
  [[nodiscard]] virtual std::shared_ptr<void> watch(const Communicator& communicator,
                                                    const std::string& name);
  /// `action` is called, by a thread of the job, when a worker or a connection between two is lost:
  /// whatever waits elsewhere than in communicators is to be ended. It replaces the one before; {}:
  /// none.
  virtual void when_lost(std::function<void(const Error&)> action);
  /// The step that this worker is in.
  virtual void set_step(std::uint64_t step);

  /// What the workers found out together at their start, for those that come later: the last thing
  /// that they do before any of them may go on without another one. Called by all.
  virtual void remember(const std::string& key, std::string_view value);
  virtual std::string remembered(const std::string& key);

  /// A communicator of all workers. Called by all. What kills the group ends its calls.
  virtual std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options = {});

 private:
  class Alarm;
  struct Private {};

 public:
  WorkerGroup(Private, std::vector<MemberTask> tasks, int worker);

 private:
  JoinOptions join_options(const WorkerGroupOptions& options) const;
  void join_job(const WorkerGroupOptions& options);
  void join_mpi(const WorkerGroupOptions& options);
  bool has_addresses() const;
  void connect(TimePoint deadline, bool goes_back = false);
  /// Another worker that has joined.
  struct Peer {
    Member member;
    std::optional<int> strategy;  // none: it has not published its state yet
    std::string state;
  };
  void wait_for_workers(TimePoint deadline, bool goes_back);
  void publish_state(std::string_view state);
  std::vector<Peer> peers();
  bool all_are_in_this_strategy(TimePoint deadline);
  void wait_for_exit(const std::vector<std::string>& names, TimePoint deadline);
  void connect_generation(TimePoint deadline);
  void report_lost_peer(const Error& error) const;

  const std::vector<MemberTask> tasks_;
  const int worker_;
  std::shared_ptr<ProgressBoard> progress_;
  std::shared_ptr<Alarm> alarm_;
  ControlPlane plane_;
  bool is_replacement_ = false;
  bool was_connected_ = false;
  bool has_logged_wait_ = false;  // of wait_for_exit()
  int strategy_ = 0;              // number of groups that this process has connected before
  std::uint64_t generation_ = 0;  // of the connections: the number of the last fatal verdict
  ConnectOptions connect_;        // the same each time
  Duration join_timeout_{};
  std::shared_ptr<Transport> transport_;
};

}  // namespace tutti
