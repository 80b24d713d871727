// Store of the variables of a parameter server, with batches applied exactly once, all or nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/server/applied_table.h"
#include "strategy/parameter_server/server/stored_shard.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"

namespace tutti::internal {

/// An operation with the objects that it names.
struct CheckedOperation {
  const Operation* operation = nullptr;
  StoredShard* shard = nullptr;                 // nullptr: the operation names none
  std::vector<StoredShard*> slots = {};         // for updates
  std::shared_ptr<const UpdateRule> rule = {};  // for updates, except kAddOnce
  bool was_applied_before = false;

  /// Returns the shard and its slots.
  std::vector<StoredShard*> shards() const;
};

struct BatchLookups {
  /// Returns nullptr if there is none.
  std::function<StoredShard*(ShardId)> find_shard;
  std::function<std::shared_ptr<const UpdateRule>(const std::string&)> find_rule;
  std::uint64_t first_version = 1;  // version of newly made shards
};

struct CheckedBatch {
  std::vector<CheckedOperation> operations = {};
  /// Shards that the batch makes, with their initial values; the store does not have them yet.
  std::vector<std::unique_ptr<StoredShard>> created = {};
  bool has_sync = false;
};

/// Checks a batch. The first `num_applied_before` operations that change values are not checked,
/// but their shards must exist. Throws kNotFound for an unknown shard, kInvalidArgument naming the
/// operation's number and its variable. `batch` must outlive the result.
CheckedBatch check_batch(const OperationBatch& batch, std::uint64_t num_applied_before,
                         const BatchLookups& lookups);

/// Tries the synchronous updates of a batch on copies of the accumulators, and throws as
/// SyncAccumulator::take() does. Requires: the shards are locked.
void try_sync_updates(const CheckedBatch& batch);

/// Store of shards. A whole batch is checked before any of it is applied. Batches of different
/// streams run concurrently, except on common shards; those of one stream run in the order of their
/// calls. Elements change as those of local variables do (VariableComponent). Synchronous updates
/// are applied when their step is complete; reads that wait for it hold no thread. A closed store
/// holds batches, unanswered, until its coordinator opens it (StoreOrder). Thread-safe.
class VariableStore final : public VariableService {
 public:
  /// `name`: prefix of errors, "ps 1". `incarnation`: number of restarts of the task before this
  /// process. No two incarnations use the same version, so that no client takes values of an
  /// earlier one for current ones.
  explicit VariableStore(std::string name, std::uint64_t incarnation = 0, bool is_open = true);
  ~VariableStore() override;

  std::string name() const override { return name_; }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;

  /// Same as start(), but for callers that do not wait: `done` runs on this thread, or, if a read
  /// waits for a synchronous step, on the one that completes it. `owner`: see owner_left().
  void apply(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done);

  /// Ends the clients in whose names the owner sent batches, and drops its waiting reads.
  void owner_left(std::uint64_t owner);
  /// Ends all waiting reads with this error, because the step that they wait for will not be made.
  void fail_waiting_reads(const Error& error);
  /// Records that the client left: see AppliedTable::end_client().
  void end_client(std::uint64_t client);

  ServerStatistics statistics() const;

 private:
  /// An order holds all stripes; ThreadSanitizer tracks at most 64 mutexes per thread.
  static constexpr std::size_t kNumStripes = 32;

  /// A batch that is being applied: its sender, its answers, and waiting reads that it ends.
  struct Call {
    std::uint64_t owner = 0;
    std::shared_ptr<BatchAnswers> answers = {};
    std::vector<EndedRead> ended = {};
    std::uint64_t num_reads = 0;            // answered immediately
    std::uint64_t num_reads_unchanged = 0;  // of these, answered without a value
    std::optional<Error> hopeless = {};     // why a read of this batch would never end
    bool has_ended = false;                 // a worker reported its end
    bool serves_held = false;               // set by an order that opens the store
  };
  /// A batch that arrived while the store was closed.
  struct Held {
    OperationBatch batch;
    std::uint64_t owner;
    BatchAnswers::Done done;
  };
  /// Values at one moment.
  using Frozen = std::map<ShardId, OperationAnswer>;

  void apply_now(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done);
  void run(const OperationBatch& batch, Call& call);
  bool hold(OperationBatch& batch, std::uint64_t owner, BatchAnswers::Done& done);
  void serve_held();
  void obey(const StoreOrder& order, const OperationBatch& batch, Call& call);
  void read_all(const StoreOrder& order, const OperationBatch& batch,
                std::vector<OperationAnswer>& answers);
  void change_all(const StoreOrder& order, const OperationBatch& batch, Call& call);
  void accept(const StoreOrder& order) TUTTI_REQUIRES(mutex_);
  void require_run(const OperationBatch& batch) const TUTTI_REQUIRES(mutex_);
  void restore(const OperationBatch& batch, std::uint64_t generation);
  CheckedBatch check(const OperationBatch& batch, std::uint64_t num_applied_before);
  void apply_checked(const CheckedBatch& batch, Call& call);
  void apply_one(const CheckedOperation& operation, std::size_t index, Call& call);
  void read_now_or_later(WaitingRead read, Call& call);
  /// Removes and returns the waiting reads of this owner; 0: of all.
  std::vector<WaitingRead> take_reads_of(std::uint64_t owner);
  std::set<int> ended_workers() const;
  void fail_hopeless_reads();
  void change(const CheckedOperation& operation, std::vector<EndedRead>& ended);
  void take_sync(const CheckedOperation& operation, const UpdateShard& update,
                 std::vector<EndedRead>& ended);
  void count_staleness(const UpdateShard& update, std::uint64_t version);
  StoredShard* find_shard(ShardId id) const;
  void ask_for_shards(const OperationBatch& batch) const;
  std::shared_ptr<const UpdateRule> find_rule(const std::string& description);
  std::vector<StoredShard*> all_shards() const;
  void fail_if_broken() const TUTTI_REQUIRES(mutex_);

  const std::string name_;
  const std::uint64_t first_version_;
  // Locked in this order; shards' mutexes between creation_ and mutex_.
  mutable std::array<Mutex, kNumStripes> streams_;  // held while a batch that changes is applied
  mutable Mutex creation_;                          // held while a batch that creates is checked
  mutable Mutex mutex_;                             // held briefly; guards the following members
  /// Shards are never removed.
  std::unordered_map<ShardId, std::unique_ptr<StoredShard>> shards_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const UpdateRule>> rules_ TUTTI_GUARDED_BY(mutex_);
  AppliedTable table_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::set<std::uint64_t>> clients_of_
      TUTTI_GUARDED_BY(mutex_);                           // by owner
  std::set<int> ended_workers_ TUTTI_GUARDED_BY(mutex_);  // excludes workers that began again
  ServerStatistics statistics_ TUTTI_GUARDED_BY(mutex_);
  std::string why_broken_ TUTTI_GUARDED_BY(mutex_);  // set if a batch was applied in part
  // Set by the coordinator's orders.
  std::uint64_t run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_open_ TUTTI_GUARDED_BY(mutex_);
  bool serves_held_ TUTTI_GUARDED_BY(mutex_) = false;
  std::deque<Held> held_ TUTTI_GUARDED_BY(mutex_);
  Frozen frozen_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t frozen_number_ TUTTI_GUARDED_BY(mutex_) = 0;  // number of the last kFreeze
};

/// Applies a batch, the request of `call`, in the name of the caller, and answers it.
void serve(VariableStore& store, std::shared_ptr<RpcCall> call, OperationBatch batch);

/// Handler that serves a store over RPC.
class VariableHandler : public RpcHandler {
 public:
  /// `store` must outlive it.
  explicit VariableHandler(VariableStore& store) : store_(store) {}
  void take(std::shared_ptr<RpcCall> call) override {
    OperationBatch batch = decode_batch(call->request());
    serve(store_, std::move(call), std::move(batch));
  }
  void client_left(const RpcPeer& peer) override { store_.owner_left(peer.client); }

 private:
  VariableStore& store_;
};

}  // namespace tutti::internal
