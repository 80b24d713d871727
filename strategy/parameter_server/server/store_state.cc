// Operations on a whole store: its coordinator's orders, statistics, and waiting reads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "strategy/parameter_server/server/server_store.h"

namespace tutti::internal {

std::vector<StoredShard*> VariableStore::all_shards() const {
  const MutexLock lock(mutex_);
  std::vector<StoredShard*> shards;
  for (const auto& [id, shard] : shards_) shards.push_back(shard.get());
  std::ranges::sort(shards, {}, &StoredShard::id);
  return shards;
}

std::vector<WaitingRead> VariableStore::take_reads_of(std::uint64_t owner) {
  std::vector<WaitingRead> all;
  for (StoredShard* const shard : all_shards()) {
    const ShardLocks lock(*shard);
    std::erase_if(shard->waiting, [&](WaitingRead& each) {
      if (owner != 0 && each.owner != owner) return false;
      all.push_back(std::move(each));
      return true;
    });
  }
  return all;
}

void VariableStore::owner_left(std::uint64_t owner) {
  // Destroyed without a lock, because their answers may be destroyed with them.
  (void)take_reads_of(owner);
  std::deque<Held> dropped;
  std::set<std::uint64_t> clients;
  {
    const MutexLock lock(mutex_);
    if (auto found = clients_of_.extract(owner)) clients = std::move(found.mapped());
    std::erase_if(held_, [&](Held& each) {
      if (each.owner != owner) return false;
      dropped.push_back(std::move(each));
      return true;
    });
  }
  for (const std::uint64_t client : clients) end_client(client);
}

void VariableStore::fail_waiting_reads(const Error& error) {
  for (const WaitingRead& each : take_reads_of(0)) each.answers->fail(error);
}

/// Fails waiting reads of steps for which too few workers are left.
void VariableStore::fail_hopeless_reads() {
  const std::set<int> ended = ended_workers();
  for (StoredShard* const shard : all_shards()) {
    std::vector<WaitingRead> failed;
    std::optional<Error> why;
    {
      const ShardLocks lock(*shard);
      if (shard->waiting.empty()) continue;
      why = shard->why_no_step(ended);
      if (why) failed.swap(shard->waiting);
    }
    for (const WaitingRead& each : failed) each.answers->fail(*why);
  }
}

std::set<int> VariableStore::ended_workers() const {
  const MutexLock lock(mutex_);
  return ended_workers_;
}

void VariableStore::end_client(std::uint64_t client) {
  const MutexLock lock(mutex_);
  table_.end_client(client);
}

void VariableStore::accept(const StoreOrder& order) {
  if (run_ == 0) run_ = order.run;
  if (order.run != run_) {
    fail(ErrorCode::kAborted, "this server belongs to a run whose chief has exited, and ends soon");
  }
  const bool begins = order.kind == StoreOrder::Kind::kClose && order.generation > generation_;
  if (begins || order.generation == generation_) return;
  fail(ErrorCode::kAborted, "expected an order of generation ", generation_, ", got one of ",
       order.generation, "; the server was started again since");
}

void VariableStore::obey(const StoreOrder& order, const OperationBatch& batch, Call& call) {
  using Kind = StoreOrder::Kind;
  std::vector<OperationAnswer> answers(batch.operations.size());
  if (order.kind == Kind::kList || order.kind == Kind::kReadFrozen) {
    read_all(order, batch, answers);
  } else {
    const MutexRow all_streams(streams_);  // so that no change is in progress
    change_all(order, batch, call);
  }
  for (std::size_t i = 0; i < answers.size(); ++i) call.answers->set(i, std::move(answers[i]));
  call.answers->let_go();
}

void VariableStore::read_all(const StoreOrder& order, const OperationBatch& batch,
                             std::vector<OperationAnswer>& answers) {
  Frozen frozen;
  {
    const MutexLock lock(mutex_);
    accept(order);
    if (order.kind == StoreOrder::Kind::kReadFrozen) frozen = frozen_;  // shares the tensors
  }
  if (order.kind == StoreOrder::Kind::kList) {
    std::vector<ShardSpec> specs;
    for (const StoredShard* const shard : all_shards()) specs.push_back(shard->spec);
    answers.front().value = encode_specs(specs);
  }
  for (std::size_t i = 1; i < batch.operations.size(); ++i) {
    const auto* const read = std::get_if<ReadShard>(&batch.operations[i]);
    const auto found = read == nullptr ? frozen.end() : frozen.find(read->shard);
    if (found == frozen.end()) {
      fail(ErrorCode::kAborted, "operation ", i, " of an order: expected a read of a shard that ",
           "was frozen");
    }
    answers[i] = found->second;
  }
}

void VariableStore::change_all(const StoreOrder& order, const OperationBatch& batch, Call& call) {
  using Kind = StoreOrder::Kind;
  {
    const MutexLock lock(mutex_);
    accept(order);
    const bool opens = order.kind == Kind::kOpen && !is_open_;
    if (order.kind == Kind::kClose) {
      generation_ = order.generation;
      is_open_ = false;
    }
    // Changes sent before this are refused, including those that wait for a lock.
    if (opens || order.kind == Kind::kClose) table_ = AppliedTable(order.number);
    if (opens) is_open_ = true;
    // Another thread may still serve the batches held before the last opening, in order.
    if (opens) call.serves_held = !std::exchange(serves_held_, true);
    if (order.kind == Kind::kClose || order.kind == Kind::kRelease) frozen_.clear();
  }
  if (order.kind == Kind::kRestore) restore(batch, order.generation);
  if (order.kind != Kind::kFreeze) return;
  {
    const MutexLock lock(mutex_);
    // The order may be repeated after a broken connection, when values have changed.
    if (order.number <= frozen_number_) return;
    frozen_number_ = order.number;
  }
  Frozen frozen;
  for (StoredShard* const shard : all_shards()) {
    const ShardLocks lock(*shard);
    frozen[shard->id] = shard->read(ReadShard{shard->id});
  }
  const MutexLock lock(mutex_);
  fail_if_broken();
  frozen_ = std::move(frozen);
}

/// Clients' caches compare versions, so a restored value gets one that no server has used before.
void VariableStore::restore(const OperationBatch& batch, std::uint64_t generation) {
  OperationBatch creations;
  creations.operations.assign(batch.operations.begin() + 1, batch.operations.end());
  const std::uint64_t first_version = (generation << 32) + 1;
  const BatchLookups lookups{
      [this](ShardId id) { return find_shard(id); },
      [this](const std::string& description) { return find_rule(description); }, first_version};
  const MutexLock creation(creation_);
  CheckedBatch checked = check_batch(creations, 0, lookups);
  for (const CheckedOperation& each : checked.operations) {
    const auto* const create = std::get_if<CreateShard>(each.operation);
    const auto* const value =
        create == nullptr ? nullptr : std::get_if<Tensor>(&create->initial_value);
    if (value == nullptr || value->shape() != create->spec.shape()) {
      fail(ErrorCode::kInvalidArgument, "an order to restore: expected values of shards");
    }
    StoredShard& shard = *each.shard;
    const ShardLocks lock(shard);
    if (shard.version == first_version) continue;  // made by this batch
    shard.value.assign(AssignOp::kAssign, *value);
    shard.version = std::max(shard.version + 1, first_version);
  }
  const MutexLock lock(mutex_);
  why_broken_.clear();
  for (auto& shard : checked.created) shards_.emplace(shard->id, std::move(shard));
}

void serve(VariableStore& store, std::shared_ptr<RpcCall> call, OperationBatch batch) {
  const std::uint64_t owner = call->peer().client;
  store.apply(std::move(batch), owner, [call = std::move(call)](const BatchResult& result) {
    if (result.error) return call->fail(*result.error);
    try {
      call->reply(encode(result.answers));
    } catch (const Error& error) {
      call->fail(error);
    }
  });
}

ServerStatistics VariableStore::statistics() const {
  std::map<int, std::uint64_t> awaited;
  for (StoredShard* const shard : all_shards()) {
    const ShardLocks lock(*shard);
    if (shard->waiting.empty()) continue;
    for (const int rank : shard->missing_ranks()) ++awaited[rank];
  }
  const MutexLock lock(mutex_);
  ServerStatistics result = statistics_;
  result.num_shards = shards_.size();
  result.awaited = std::move(awaited);
  return result;
}

}  // namespace tutti::internal
