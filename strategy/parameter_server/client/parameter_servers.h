// This process's client for all parameter servers of a job, and its cache of values read from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/parameter_server/client/replica_steps.h"
#include "strategy/parameter_server/client/server_link.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// A shard and its server.
struct RemoteShard {
  RemoteShard(int on_server, ShardSpec of_spec)
      : server(on_server), spec(std::move(of_spec)), id(spec.id()) {}
  int server;
  ShardSpec spec;
  ShardId id;  // id of the spec, cached because every operation contains it
};

/// Cached values of a variable. `shards` is constant; ParameterServers guards the other members.
struct ReadCache {
  std::vector<RemoteShard> shards;
  std::vector<Tensor> values;           // per shard; undefined if never read
  std::vector<std::uint64_t> versions;  // versions of these values
  Tensor whole;                         // values of all shards, joined
  std::uint64_t epoch = 0;              // epoch in which the value was known to be current
};

/// Client of all servers of a job. Reads return current values. Within a step (a run or a closure
/// of this process), a variable is fetched at its first read, and at the first read after a change
/// or after another step has begun. A fetch includes all variables that the last step read: one
/// message per server. Thread-safe.
class ParameterServers {
 public:
  /// `timeout` limits the wait for each reply. `team` is the team of workers that train together
  /// and make the same calls; nullptr if there is none, or if workers do not wait for each other.
  ParameterServers(std::vector<std::shared_ptr<VariableService>> services, Duration timeout,
                   std::shared_ptr<WorkerTeam> team = nullptr);
  /// Overload for a worker that trains independently.
  ParameterServers(std::vector<std::shared_ptr<VariableService>> services, Duration timeout,
                   const WorkerPace& pace);
  ~ParameterServers() { leave(); }

  int count() const { return static_cast<int>(links_.size()); }
  ServerLink& link(int server) { return *links_[static_cast<std::size_t>(server)]; }
  TimePoint deadline() const;
  /// Waits for the replies to a read, which may have to wait for other workers. Throws
  /// kDeadlineExceeded, naming the awaited workers, and OriginError if a server failed.
  std::vector<OperationAnswer> wait_for_read(int server, PendingAnswers& pending);

  /// Returns the name that servers use for the next variable called `name`. Repeated names get a
  /// number, which is the same in all processes that create their variables in the same order.
  std::string unique_name(const std::string& name);

  /// Begins a step: invalidates all cached values. If the servers sum gradients, the first step
  /// also reports to them that this worker is starting.
  void begin_step();
  void end_step();
  /// If the servers sum gradients, reports to them that this worker has ended. The destructor does
  /// this, too.
  void leave() noexcept;
  Tensor read(const std::shared_ptr<ReadCache>& cache) {
    return read_current([&] { return read_once(cache); });
  }
  /// Records a read of some of the variable's rows, which did not use read().
  void note_read(const std::shared_ptr<ReadCache>& cache, std::span<const OperationAnswer> answers);
  /// Returns the number of synchronous steps that a read of the variable has to wait for.
  std::uint64_t steps_to_wait_for(const std::shared_ptr<ReadCache>& cache);

  /// Returns true if the servers sum the gradients of several workers. In that case, assign_step()
  /// returns the step that the calling worker's update of a variable belongs to, or nullopt if the
  /// update is dropped.
  bool sums_on_servers() const { return replica_steps_ != nullptr; }
  std::optional<SyncSpec> assign_step(const std::shared_ptr<ReadCache>& cache);
  bool trains_apart() const { return pace_.has_value(); }
  /// Returns true if this worker may restore checkpoints. If workers train independently, only the
  /// first may, so that a worker that starts later does not undo steps.
  bool may_restore() const { return !pace_ || pace_->worker == 0; }

  /// Returns describe_update_rule(rule). An optimizer updates all of its variables by the same rule
  /// in every step, so all updates share one string. Throws the same errors as
  /// describe_update_rule().
  SharedText rule_text(const UpdateRule& rule);
  /// Function that is called before and after a read outside closures. It waits until the servers'
  /// values are current, and returns a number that changes with each rollback to a checkpoint. A
  /// read during which this number changes is repeated. Empty if servers never roll back.
  using Currency = std::function<std::uint64_t()>;
  void set_currency(Currency currency);
  /// Calls `read`, repeating the call as described for Currency.
  Tensor read_current(const std::function<Tensor()>& read);
  /// Returns the number of changes that were made outside closures, by the program or on its
  /// behalf. Checkpoints saved before a change do not contain it.
  std::uint64_t num_outside_changes() const { return num_outside_changes_.load(); }
  void note_outside_change() { num_outside_changes_.fetch_add(1); }
  /// Returns the shards that this process has created.
  std::vector<RemoteShard> shards();
  void note_made(const std::vector<RemoteShard>& shards);

  /// Sets a function that is called before each change and can refuse the change by throwing. Must
  /// be called before all other functions.
  void set_guard(std::function<void()> guard) { guard_ = std::move(guard); }
  /// Adds a change to a shard, and invalidates the cache.
  void change(int server, Operation operation);
  /// Calls `change`, which makes changes with change(). Outside steps, also waits until these
  /// changes have been applied. With a team, all workers call change_together(), only the first one
  /// calls `change`, and all wait until the changes have been applied. `what` is compared between
  /// workers.
  void change_together(const std::function<void()>& change, const std::string& what);
  /// meet() waits until the changes of all workers of the team have been applied; collective.
  /// settle(), and meet() without a team, wait only for the changes of this client or closure.
  void meet(const std::string& what);
  void settle();
  /// Declares that the calling thread's closure will make no more changes.
  void end_stream();
  /// Restarts after the servers have rolled back; see ServerLink::restart().
  void restart();

 private:
  using Caches = std::vector<std::shared_ptr<ReadCache>>;
  Tensor read_once(const std::shared_ptr<ReadCache>& cache);
  /// Calls the function passed to set_currency() and returns its result; returns 0 in closures, and
  /// if servers never roll back.
  std::uint64_t wait_until_current();
  Caches wanted(const std::shared_ptr<ReadCache>& cache) TUTTI_REQUIRES(mutex_);
  void fetch(const Caches& caches);
  void fetch_once(const Caches& caches, std::uint64_t at_least_steps);
  TimePoint read_deadline() const;
  void report(bool has_ended, TimePoint deadline);
  void fail_if_workers_are_missing(int server, const Error& error);
  bool is_fresh(const ReadCache& cache) const TUTTI_REQUIRES(mutex_);
  bool is_in_step();
  void forget_reads();

  const std::uint64_t client_;  // random, unique among processes
  std::vector<std::unique_ptr<ServerLink>> links_;
  std::function<void()> guard_;
  std::atomic<std::uint64_t> num_outside_changes_{0};
  Mutex currency_mutex_;  // held during calls to currency_
  Currency currency_ TUTTI_GUARDED_BY(currency_mutex_);
  const Duration timeout_;
  const std::shared_ptr<WorkerTeam> team_;
  const std::optional<WorkerPace> pace_;  // set if this worker trains independently
  Mutex mutex_;
  CondVar fetched_;
  std::uint64_t epoch_ TUTTI_GUARDED_BY(mutex_) = 1;
  int num_steps_ TUTTI_GUARDED_BY(mutex_) = 0;  // number of steps in progress
  std::map<std::string, int> num_of_name_
      TUTTI_GUARDED_BY(mutex_);  // number of variables with each name
  std::vector<RemoteShard> made_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, SharedText> rule_texts_ TUTTI_GUARDED_BY(mutex_);  // keyed by rule number
  bool is_fetching_ TUTTI_GUARDED_BY(mutex_) = false;
  // Variables that the last step read, and variables that the current step has read.
  std::set<std::shared_ptr<ReadCache>> usual_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<ReadCache>> read_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<ReplicaSteps> replica_steps_;  // the object is guarded by mutex_
  bool has_joined_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
