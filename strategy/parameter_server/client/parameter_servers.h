// All servers of a job as this process uses them, and what it has read from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/parameter_server/client/replica_steps.h"
#include "strategy/parameter_server/client/server_link.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// An optimizer updates all of its variables by the same rule, in every step: they share one text.
/// Threads: any.
class RuleTexts {
 public:
  /// describe_update_rule(rule). Throws as it does.
  SharedText of(const UpdateRule& rule);

 private:
  Mutex mutex_;
  // By UpdateRule::number(), the latest last: an optimizer has up to three rules.
  std::deque<std::pair<std::uint64_t, SharedText>> texts_ TUTTI_GUARDED_BY(mutex_);
};

/// A shard, and where it is.
struct RemoteShard {
  RemoteShard(int on_server, ShardSpec of_spec)
      : server(on_server), spec(std::move(of_spec)), id(spec.id()) {}
  int server;
  ShardSpec spec;
  ShardId id;  // the spec's, made once: it is in every operation
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
  /// Of a worker that trains apart from others.
  ParameterServers(std::vector<std::shared_ptr<VariableService>> services, Duration timeout,
                   const WorkerPace& pace);
  ~ParameterServers() { leave(); }

  int count() const { return static_cast<int>(links_.size()); }
  ServerLink& link(int server) { return *links_[static_cast<std::size_t>(server)]; }
  TimePoint deadline() const;
  /// The answers to a read, which may have to wait for other workers. Throws kDeadlineExceeded
  /// naming the worker that it waited for; failures of the server as OriginError.
  std::vector<OperationAnswer> wait_for_read(int server, PendingAnswers& pending);

  /// What servers call the next variable of this name: of several all but the first get a number,
  /// the same in every process that makes them in the same order.
  std::string unique_name(const std::string& name);

  /// From now on nothing that was read counts. Where servers add up gradients, the first step also
  /// reports to them that this worker begins.
  void begin_step();
  void end_step();
  /// Where servers add up gradients, reports to them that this worker has ended; so does the
  /// destructor.
  void leave() noexcept;
  Tensor read(const std::shared_ptr<ReadCache>& cache) {
    return read_current([&] { return read_once(cache); });
  }
  /// Rows of these shards (`indices`) of a variable were read otherwise, by the calling thread.
  void note_read(const std::shared_ptr<ReadCache>& cache, std::span<const int> indices,
                 std::span<const OperationAnswer> answers);
  /// For how many synchronous steps a read of the variable has to wait.
  std::uint64_t steps_to_wait_for(const std::shared_ptr<ReadCache>& cache);
  /// The version that the calling thread's gradient was computed from, once per update; 0: not
  /// known.
  std::uint64_t version_of_gradient(ShardId shard);

  /// Whether the servers add up gradients of several workers. Then give() says to which step the
  /// calling worker's update of a variable belongs; nothing: it is left out.
  bool sums_on_servers() const { return replica_steps_ != nullptr; }
  std::optional<SyncSpec> give(const std::shared_ptr<ReadCache>& cache);
  bool trains_apart() const { return pace_.has_value(); }
  /// Of several workers that train apart, one restores checkpoints: a late one must not undo steps.
  bool may_restore() const { return !pace_ || pace_->worker == 0; }

  /// Of every server.
  std::vector<ServerStatistics> statistics();

  /// What servers are told of the rule.
  SharedText rule_text(const UpdateRule& rule) { return rule_texts_.of(rule); }
  /// Called before and after a read outside closures: returns when the values that servers have are
  /// the present ones, and how often they went back to a checkpoint. A read in which that number
  /// changed is repeated. Empty: servers never go back.
  using Currency = std::function<std::uint64_t()>;
  void set_currency(Currency currency);
  /// Calls `read` as read() does.
  Tensor read_current(const std::function<Tensor()>& read);
  /// Changes outside closures so far, of the program's own and on behalf of it: a checkpoint that
  /// is older does not have them.
  std::uint64_t num_outside_changes() const { return num_outside_changes_.load(); }
  void note_outside_change() { num_outside_changes_.fetch_add(1); }
  /// The shards that this process has made.
  std::vector<RemoteShard> shards();
  void note_made(const std::vector<RemoteShard>& shards);

  /// Called before each change; what it throws refuses the change. Set before all else.
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
  /// Servers have another state than before: see ServerLink::begin_anew().
  void begin_anew();

 private:
  using Caches = std::vector<std::shared_ptr<ReadCache>>;
  Tensor read_once(const std::shared_ptr<ReadCache>& cache);
  /// 0 in closures, and where servers never go back.
  std::uint64_t wait_until_current();
  Caches wanted(const std::shared_ptr<ReadCache>& cache) TUTTI_REQUIRES(mutex_);
  void fetch(const Caches& caches);
  void fetch_once(const Caches& caches, std::uint64_t at_least_steps);
  TimePoint read_deadline() const;
  std::vector<OperationAnswer> ask_all(const Operation& question);
  void report_begin();
  void fail_if_workers_are_missing(int server, const Error& error);
  void note_versions(const ReadCache& cache) TUTTI_REQUIRES(mutex_);
  bool is_fresh(const ReadCache& cache) const TUTTI_REQUIRES(mutex_);
  bool is_in_step();
  void forget_reads();

  const std::uint64_t client_;  // unlike that of any other process
  std::vector<std::unique_ptr<ServerLink>> links_;
  std::function<void()> guard_;
  std::atomic<std::uint64_t> num_outside_changes_{0};
  Mutex currency_mutex_;  // held while it is called
  Currency currency_ TUTTI_GUARDED_BY(currency_mutex_);
  const Duration timeout_;
  const std::shared_ptr<WorkerTeam> team_;
  const std::optional<WorkerPace> pace_;  // of a worker that trains apart
  RuleTexts rule_texts_;
  Mutex mutex_;
  CondVar fetched_;
  std::uint64_t epoch_ TUTTI_GUARDED_BY(mutex_) = 1;
  int num_steps_ TUTTI_GUARDED_BY(mutex_) = 0;                       // under way
  std::map<std::string, int> num_of_name_ TUTTI_GUARDED_BY(mutex_);  // variables made, by name
  std::vector<RemoteShard> made_ TUTTI_GUARDED_BY(mutex_);
  bool is_fetching_ TUTTI_GUARDED_BY(mutex_) = false;
  // What the last step read and what this one has read.
  std::set<std::shared_ptr<ReadCache>> usual_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<ReadCache>> read_ TUTTI_GUARDED_BY(mutex_);
  /// Which version the first read since the last update gave, in steps under way: by reader (with
  /// the closure's attempt) and shard, for readers read the same variable at different times.
  std::map<std::tuple<UpdateStream, int, ShardId>, std::uint64_t> versions_
      TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<ReplicaSteps> replica_steps_;  // what it points to: guarded by mutex_
  bool has_joined_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
