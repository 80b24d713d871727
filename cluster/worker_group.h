// The connected workers of a job: transports between them, and detection of lost workers.
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

/// The group of tasks that train together (chief, then workers), as seen by one task. Each task
/// creates the group at startup; until the last one has done so, a log line names the missing
/// workers every 4.5 s. Later, if a worker dies, stops or hangs, all workers' collectives fail with
/// an error that names it. Functions that strategies call are virtual, so that a program links gRPC
/// only if it calls join(). Thread-safe.
class WorkerGroup {
 public:
  /// Joins the job and connects the workers. An empty cluster means a group of this single process.
  /// Throws kInvalidArgument if the task does not train; kDeadlineExceeded, naming the workers that
  /// did not join; and the errors of validate_cluster() and join_job().
  static std::shared_ptr<WorkerGroup> join(const ClusterResolver& resolver,
                                           const WorkerGroupOptions& options = {});
  /// Leaves the job. The process that hosts the control server waits briefly for the other workers.
  virtual ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  int worker() const { return worker_; }
  int num_workers() const { return static_cast<int>(tasks_.size()); }
  /// Returns the name of a worker's task in the cluster, such as "worker 2".
  virtual std::string name_of(int worker) const;
  /// Returns the job's client. Null for a single process, and under MPI if there are several
  /// machines but no TUTTI_CONTROL, or if the build has no gRPC.
  ControlClient* control() const { return plane_.client.get(); }

  /// Returns true if this process replaces one that died after the workers had called remember(). A
  /// process that restarts before that call is connected as if it were new. Always false after a
  /// process's first group, because the other workers join its later groups at the same point of
  /// the program.
  bool is_replacement() const { return is_replacement_; }
  /// Returns true if the workers should reconnect() after a call failed with `error`: that is, if
  /// the job detects, within `patience`, that since the last reconnect() a worker died, was stopped
  /// or got stuck, or that a connection between two workers broke. Reports a broken connection of
  /// this worker to the job, but only after a delay, because the job may find that a worker died.
  /// Returns false if a worker reported its own failure or called a mismatched collective, and
  /// always under MPI, where no process can rejoin.
  virtual bool may_reconnect(const Error& error, Duration patience) const;
  /// Collective. Waits until all workers have joined, including restarted ones, and reconnects
  /// them. All communicators must have been destroyed. Throws kDeadlineExceeded naming the missing
  /// workers, kUnavailable if another worker is lost meanwhile, and kFailedPrecondition if all
  /// processes must be restarted together, because the job has given up on this process, the
  /// control server has exited, or a restarted worker has not yet reached the program's current
  /// strategy.
  virtual void reconnect(TimePoint deadline);
  /// Connects a restarted worker in a program that never calls reconnect(). In such a program, all
  /// processes end when one worker is lost. Waits until every previously connected worker has
  /// exited, then connects the restarted workers. Returns false if the other workers call
  /// reconnect(). Throws kDeadlineExceeded, naming the workers, if some did not exit or join within
  /// the option `join_timeout`.
  virtual bool restart();

  /// Reports the progress of the communicator's calls to the job while the returned object exists;
  /// the communicator must outlive that object. If the workers wait for one worker in such a call,
  /// all log a warning that names that worker. `name` must be equal on all workers.
  [[nodiscard]] virtual std::shared_ptr<void> watch(const Communicator& communicator,
                                                    const std::string& name);
  /// Sets the action to run, on a thread of the job, when a worker or a connection between two
  /// workers is lost. The action must end any waiting outside of communicators. Replaces the
  /// previous action; {} removes it.
  virtual void when_lost(std::function<void(const Error&)> action);
  /// Reports the step that this worker is executing.
  virtual void set_step(std::uint64_t step);

  /// Collective. Stores a value that the workers agreed on at startup, for workers that join later.
  /// After this call, if a worker is lost, the others may continue, so they must have agreed on
  /// everything else.
  virtual void remember(const std::string& key, std::string_view value);
  virtual std::string remembered(const std::string& key);

  /// Collective. Creates a communicator across all workers; its calls fail once the group loses a
  /// worker.
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
    std::optional<int> strategy;  // nullopt if not published yet
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
  std::shared_ptr<ProgressTracker> progress_;
  std::shared_ptr<Alarm> alarm_;
  ControlPlane plane_;
  bool is_replacement_ = false;
  bool was_connected_ = false;
  bool has_logged_wait_ = false;  // used by wait_for_exit()
  int strategy_ = 0;              // number of groups that this process connected earlier
  std::uint64_t generation_ = 0;  // number of the last fatal verdict before the current connection
  ConnectOptions connect_;        // options for every connect()
  Duration join_timeout_{};
  std::shared_ptr<Transport> transport_;
};

}  // namespace tutti
