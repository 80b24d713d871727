// Store of the variables of a parameter server. Each batch is applied atomically and exactly once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/protocol/variable_service.h"
#include "strategy/parameter_server/server/applied_table.h"
#include "strategy/parameter_server/server/stored_shard.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Counters of a store since its start.
struct StoreCounts {
  std::uint64_t num_batches = 0;          // applied batches, except those with a StoreOrder
  std::uint64_t num_changes = 0;          // accepted changes, including dropped gradients
  std::uint64_t num_applied_before = 0;   // repeated changes, which were not applied again
  std::uint64_t num_reads = 0;            // completed reads
  std::uint64_t num_reads_unchanged = 0;  // reads by clients that already had the current value
  std::uint64_t num_sync_steps = 0;       // completed steps, summed over all shards
  std::uint64_t num_stale_dropped = 0;    // gradients for steps that were already complete
  std::uint64_t num_rank_duplicates = 0;  // repeated gradients from one worker for one step
};

/// Store of shards. Batches are applied one at a time, and a whole batch is checked before any of
/// it is applied. Elements are updated like those of local variables (VariableComponent).
/// Synchronous updates are applied when their step is complete; reads that wait for that step do
/// not block a thread. While a store is closed, batches wait until its coordinator opens it
/// (StoreOrder). Thread-safe.
class VariableStore final : public VariableService {
 public:
  /// `name`: prefix of errors, such as "ps 1". `incarnation`: number of restarts of the task before
  /// this process. No two incarnations use the same version, so that no client mistakes values of
  /// an earlier incarnation for current ones.
  explicit VariableStore(std::string name, std::uint64_t incarnation = 0, bool is_open = true);
  ~VariableStore() override;

  std::string name() const override { return name_; }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;

  /// Same as start(), but for callers that do not wait: `done` runs on this thread, or, if the
  /// batch waits for a synchronous step or for an order, on the thread that ends the wait. `owner`:
  /// see owner_left().
  void apply(OperationBatch batch, std::uint64_t owner, BatchDone done);

  /// Ends the clients whose batches were sent by `owner`, which has disconnected
  /// (AppliedTable::end_client()), and drops the waiting reads and batches of `owner`.
  void owner_left(std::uint64_t owner);
  /// Ends all waiting reads with this error, because the steps for which they wait will not happen.
  void fail_waiting_reads(const Error& error);

  StoreCounts counts() const;

 private:
  class Checker;
  struct CheckedOperation;
  using Checked = std::vector<CheckedOperation>;
  using Shards = std::unordered_map<ShardId, std::unique_ptr<StoredShard>>;
  /// A batch that arrived while the store was closed.
  struct Held {
    OperationBatch batch;
    std::uint64_t owner;
    BatchDone done;
  };
  /// Results to be delivered when the mutex is released.
  using Results = std::vector<std::pair<BatchDone, BatchResult>>;

  static void deliver(Results& results);
  void apply_now(OperationBatch batch, std::uint64_t owner, BatchDone done, Results& results)
      TUTTI_REQUIRES(mutex_);
  void run(const OperationBatch& batch, std::uint64_t owner,
           const std::shared_ptr<BatchAnswers>& answers, Results& results) TUTTI_REQUIRES(mutex_);
  void require_run(const OperationBatch& batch) const TUTTI_REQUIRES(mutex_);
  void fail_if_broken() const TUTTI_REQUIRES(mutex_);
  OperationAnswer apply_one(const CheckedOperation& operation, Results& results)
      TUTTI_REQUIRES(mutex_);
  OperationAnswer counted(OperationAnswer answer) TUTTI_REQUIRES(mutex_);
  void wait_for_step(WaitingRead wanted, StoredShard& shard, Results& results)
      TUTTI_REQUIRES(mutex_);
  void accept_sync(const CheckedOperation& operation, const UpdateShard& update, Results& results)
      TUTTI_REQUIRES(mutex_);
  void fail_hopeless_reads(Results& results) TUTTI_REQUIRES(mutex_);
  Tensor awaited_workers() const TUTTI_REQUIRES(mutex_);
  std::function<std::shared_ptr<const UpdateRule>(const std::string&)> rule_finder();

  // Functions for orders from the coordinator.
  void run_order(const StoreOrder& order, const OperationBatch& batch,
                 std::vector<OperationAnswer>& answers, Results& results) TUTTI_REQUIRES(mutex_);
  void accept(const StoreOrder& order) TUTTI_REQUIRES(mutex_);
  void open(Results& results) TUTTI_REQUIRES(mutex_);
  void freeze(std::uint64_t number) TUTTI_REQUIRES(mutex_);
  void read_frozen(const OperationBatch& batch, std::vector<OperationAnswer>& answers) const
      TUTTI_REQUIRES(mutex_);
  void restore(const OperationBatch& batch) TUTTI_REQUIRES(mutex_);

  const std::string name_;
  const std::uint64_t first_version_;
  mutable Mutex mutex_;
  /// Shards are never removed.
  Shards shards_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const UpdateRule>> rules_ TUTTI_GUARDED_BY(mutex_);
  AppliedTable table_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::set<std::uint64_t>> clients_of_
      TUTTI_GUARDED_BY(mutex_);                           // keyed by owner
  std::set<int> ended_workers_ TUTTI_GUARDED_BY(mutex_);  // excludes restarted workers
  StoreCounts counts_ TUTTI_GUARDED_BY(mutex_);
  std::string why_broken_ TUTTI_GUARDED_BY(mutex_);  // set if a batch was partially applied
  // Set by the coordinator's orders.
  std::uint64_t run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_open_ TUTTI_GUARDED_BY(mutex_);
  std::deque<Held> held_ TUTTI_GUARDED_BY(mutex_);
  std::map<ShardId, OperationAnswer> frozen_ TUTTI_GUARDED_BY(mutex_);  // values kept by kFreeze
  std::uint64_t frozen_number_ TUTTI_GUARDED_BY(mutex_) = 0;  // number of the last kFreeze
};

/// Handler that serves a store over RPC.
class VariableHandler : public RpcHandler {
 public:
  /// `store` must outlive this handler.
  explicit VariableHandler(VariableStore& store) : store_(store) {}
  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override { store_.owner_left(peer.client); }

 private:
  VariableStore& store_;
};

}  // namespace tutti::internal
