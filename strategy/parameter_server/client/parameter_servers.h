// All servers of a job as this process uses them, and what it has read from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/strategy/multi_worker/worker_team.h"
#include "tutti/strategy/parameter_server/client/server_link.h"

namespace tutti::internal {

/// A shard, where it is, and what was last read of it.
struct RemoteShard {
  int server = 0;
  ShardSpec spec = {};
};

/// The values of a variable as read; but for `shards`, which stay, guarded by ParameterServers.
struct ReadCache {
  std::vector<RemoteShard> shards;
  std::vector<Tensor> values;           // per shard; undefined: never read
  std::vector<std::uint64_t> versions;  // of these values
  Tensor whole;                         // of all shards
  std::uint64_t epoch = 0;              // when it was known to be the present one
};

/// Reads are of the present values. Within a step (of one process: a run, or a closure) a variable
/// is read from its servers once, and again after a change: then all variables that the last step
/// read are fetched together, in one message per server. Threads: any.
class ParameterServers {
 public:
  /// `timeout`: for every answer. `team`: the workers that train together, all of which make the
  /// same calls; nullptr: there are none, or they do not wait for each other.
  ParameterServers(std::vector<std::shared_ptr<VariableService>> services, Duration timeout,
                   std::shared_ptr<WorkerTeam> team = nullptr);

  int count() const { return static_cast<int>(links_.size()); }
  ServerLink& link(int server) { return *links_[static_cast<std::size_t>(server)]; }
  TimePoint deadline() const;

  /// What servers call the next variable of this name: of several all but the first get a number,
  /// the same in every process that makes them in the same order.
  std::string unique_name(const std::string& name);

  /// From now on nothing that was read counts.
  void begin_step();
  void end_step();
  Tensor read(const std::shared_ptr<ReadCache>& cache);

  /// Asked before each change; what it throws refuses that. Set before all else.
  void set_guard(std::function<void()> guard) { guard_ = std::move(guard); }
  /// Notes a change of a shard: what was read does not count any more.
  void change(int server, Operation operation);
  /// Calls change(), which notes changes; outside steps returns when they were applied. With a team
  /// all workers call it, and the first one's changes count; then it returns when they were
  /// applied. `what` is compared between workers.
  void change_together(const std::function<void()>& change, const std::string& what);
  /// Waits until the changes of this client (or closure) were applied; with a team, those of all
  /// workers, who all call it.
  void meet(const std::string& what);
  void settle();
  /// The closure that the calling thread works on changes nothing more.
  void end_stream();
  /// The servers went back: see ServerLink::begin_anew().
  void begin_anew();

 private:
  using Caches = std::vector<std::shared_ptr<ReadCache>>;
  Caches wanted(const std::shared_ptr<ReadCache>& cache) TUTTI_REQUIRES(mutex_);
  void fetch(const Caches& caches);
  bool is_fresh(const ReadCache& cache) const TUTTI_REQUIRES(mutex_);
  bool is_in_step();
  void forget_reads();

  std::vector<std::unique_ptr<ServerLink>> links_;
  std::function<void()> guard_;
  const Duration timeout_;
  const std::shared_ptr<WorkerTeam> team_;
  Mutex mutex_;
  CondVar fetched_;
  std::uint64_t epoch_ TUTTI_GUARDED_BY(mutex_) = 1;
  int num_steps_ TUTTI_GUARDED_BY(mutex_) = 0;                       // under way
  std::map<std::string, int> num_of_name_ TUTTI_GUARDED_BY(mutex_);  // variables made, by name
  bool is_fetching_ TUTTI_GUARDED_BY(mutex_) = false;
  // What the last step read and what this one has read.
  std::set<std::shared_ptr<ReadCache>> usual_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<ReadCache>> read_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
