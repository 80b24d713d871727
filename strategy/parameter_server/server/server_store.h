// The variables of a parameter server, and what is done with them: exactly once, all or nothing.
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

/// An operation with what it names.
struct CheckedOperation {
  const Operation* operation = nullptr;
  StoredShard* shard = nullptr;                 // nullptr: the operation names none
  std::vector<StoredShard*> slots = {};         // of updates
  std::shared_ptr<const UpdateRule> rule = {};  // of updates, but for kAddOnce
  bool was_applied_before = false;

  /// The shard and its slots.
  std::vector<StoredShard*> shards() const;
};

struct BatchLookups {
  /// nullptr when there is none.
  std::function<StoredShard*(ShardId)> find_shard;
  std::function<std::shared_ptr<const UpdateRule>(const std::string&)> find_rule;
  std::uint64_t first_version = 1;  // of shards that are made
};

struct CheckedBatch {
  std::vector<CheckedOperation> operations = {};
  /// Shards that the batch makes, with their first values; the server has none of them yet.
  std::vector<std::unique_ptr<StoredShard>> created = {};
  bool has_sync = false;
};

/// The first `num_applied_before` operations that change values are not checked, but their shards
/// must be there. Throws kNotFound for an unknown shard, kInvalidArgument naming the operation's
/// number and its variable. `batch` outlives the result.
CheckedBatch check_batch(const OperationBatch& batch, std::uint64_t num_applied_before,
                         const BatchLookups& lookups);

/// Tries the synchronous updates of a batch on copies of the accumulators: what would be refused
/// throws here, as SyncAccumulator::take(). The shards are locked.
void try_sync_updates(const CheckedBatch& batch);

/// A batch is checked before any of it is applied. Batches of different streams run at once, and
/// meet at the shards that both use; those of one stream one after the other, in the order of their
/// calls. Elements change as those of local variables do (VariableComponent). Synchronous updates
/// are applied when their step is complete; reads that wait for it hold no thread. A store that is
/// closed holds batches, unanswered, until its coordinator opens it (StoreOrder). Thread-safe.
class VariableStore final : public VariableService {
 public:
  /// `name` stands in front of errors: "ps 1". `incarnation`: restarts of the task before this
  /// process. No version is given by two of them, so that nobody takes values of an earlier one for
  /// the present ones.
  explicit VariableStore(std::string name, std::uint64_t incarnation = 0, bool is_open = true);
  ~VariableStore() override;

  std::string name() const override { return name_; }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;

  /// The same for callers that do not wait: `done` runs in this thread, or, if a read waits for a
  /// synchronous step, in the one that completes it. `owner`: see owner_left().
  void apply(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done);

  /// It has left, and with it the clients in whose names it sent batches; no caller wants the
  /// answers to its waiting reads any more.
  void owner_left(std::uint64_t owner);
  /// Ends all waiting reads with this error: the step they wait for will not come.
  void fail_waiting_reads(const Error& error);
  /// The client left: see AppliedTable::end_client().
  void end_client(std::uint64_t client);

  ServerStatistics statistics() const;

 private:
  /// An order holds them all; ThreadSanitizer follows 64 mutexes per thread.
  static constexpr std::size_t kNumStripes = 32;

  /// A batch on its way: who asked, where answers go, and reads that it ends.
  struct Call {
    std::uint64_t owner = 0;
    std::shared_ptr<BatchAnswers> answers = {};
    std::vector<EndedRead> ended = {};
    std::uint64_t num_reads = 0;            // answered at once
    std::uint64_t num_reads_unchanged = 0;  // of those, without a value
    std::optional<Error> hopeless = {};     // why a read of this batch would wait for ever
    bool has_ended = false;                 // a worker reported that it has
    bool serves_held = false;               // by an order that opens the store
  };
  /// A batch that came while the store was closed.
  struct Held {
    OperationBatch batch;
    std::uint64_t owner;
    BatchAnswers::Done done;
  };
  /// Values as they were at one moment.
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
  /// Takes the reads of this owner that wait; 0: all.
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
  // Taken in this order; shards' mutexes between creation_ and mutex_.
  mutable std::array<Mutex, kNumStripes> streams_;  // held while a batch that changes is applied
  mutable Mutex creation_;                          // held while a batch that creates is checked
  mutable Mutex mutex_;                             // held shortly: of what follows
  /// They live as long as the store.
  std::unordered_map<ShardId, std::unique_ptr<StoredShard>> shards_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const UpdateRule>> rules_ TUTTI_GUARDED_BY(mutex_);
  AppliedTable table_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::set<std::uint64_t>> clients_of_
      TUTTI_GUARDED_BY(mutex_);                           // by owner
  std::set<int> ended_workers_ TUTTI_GUARDED_BY(mutex_);  // those that have not begun again
  ServerStatistics statistics_ TUTTI_GUARDED_BY(mutex_);
  std::string why_broken_ TUTTI_GUARDED_BY(mutex_);  // a batch was applied in part
  // Of the coordinator's orders.
  std::uint64_t run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_open_ TUTTI_GUARDED_BY(mutex_);
  bool serves_held_ TUTTI_GUARDED_BY(mutex_) = false;
  std::deque<Held> held_ TUTTI_GUARDED_BY(mutex_);
  Frozen frozen_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t frozen_number_ TUTTI_GUARDED_BY(mutex_) = 0;  // of the last kFreeze
};

/// Applies a batch, which was the request of `call`, and answers it. Its owner is the caller.
void serve(VariableStore& store, std::shared_ptr<RpcCall> call, OperationBatch batch);

/// Serves a store to its callers.
class VariableHandler : public RpcHandler {
 public:
  /// `store` outlives it.
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
