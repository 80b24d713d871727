// A store as a whole: its snapshot, its numbers, who waits, and calls of other tasks.
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
  // Their answers go where the last reference goes: here no lock is held.
  (void)take_reads_of(owner);
  std::set<std::uint64_t> clients;
  {
    const MutexLock lock(mutex_);
    if (auto found = clients_of_.extract(owner)) clients = std::move(found.mapped());
  }
  for (const std::uint64_t client : clients) end_client(client);
}

void VariableStore::fail_waiting_reads(const Error& error) {
  for (const WaitingRead& each : take_reads_of(0)) each.answers->fail(error);
}

/// Those of steps for which too few workers are left.
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

StoreSnapshot VariableStore::snapshot(const std::function<void()>& moment) const {
  const MutexRow all_streams(streams_);
  const MutexLock creation(creation_);
  StoreSnapshot result;
  for (StoredShard* const shard : all_shards()) {
    const ShardLocks lock(*shard);
    result.shards.push_back(
        {shard->spec, shard->value.read(), shard->version, shard->num_steps, shard->accumulator});
  }
  {
    const MutexLock lock(mutex_);
    fail_if_broken();
    result.table = table_;
  }
  if (moment) moment();
  return result;
}

void VariableStore::set_log(std::shared_ptr<ChangeLog> log) {
  const MutexLock lock(mutex_);
  log_ = std::move(log);
}

void VariableStore::restore(const StoreSnapshot& snapshot) {
  const MutexRow all_streams(streams_);
  const MutexLock creation(creation_);
  const MutexLock lock(mutex_);
  if (!shards_.empty()) {
    fail(ErrorCode::kFailedPrecondition, name_, ": expected a server without variables, got one ",
         "with ", shards_.size(), " shards; a snapshot is restored before anybody comes");
  }
  for (const ShardSnapshot& each : snapshot.shards) {
    const std::uint64_t num_changes = each.version & 0xFFFFFFFF;
    auto shard = std::make_unique<StoredShard>(
        each.spec, each.value, std::max(each.version, first_version_ - 1 + num_changes));
    shard->num_steps = each.num_steps;
    shard->accumulator = each.accumulator;
    shards_.emplace(shard->id, std::move(shard));
  }
  table_ = snapshot.table;
}

void VariableStore::fence(std::uint64_t term) {
  ChangeIdentity fence;
  fence.term = term;
  const MutexLock lock(mutex_);
  table_.note_applied(fence);
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

void check_has_all(const std::string& name, const VariableStore& store,
                   const StoreSnapshot& state) {
  for (const ShardSnapshot& own : store.snapshot().shards) {
    const ShardId id = own.spec.id();
    const auto found = std::ranges::find_if(
        state.shards, [&](const ShardSnapshot& each) { return each.spec.id() == id; });
    if (found != state.shards.end() && found->spec == own.spec) continue;
    fail(ErrorCode::kFailedPrecondition, name, ": variable ", own.spec, " ", own.spec.dtype, " ",
         own.spec.shape(), ": expected it in the snapshot, found ",
         found == state.shards.end()
             ? std::string("none; it was made after that")
             : concat(found->spec, " ", found->spec.dtype, " ", found->spec.shape()),
         "; try making all variables before start(), or another folder for another program");
  }
}

std::optional<Error> apply_again(VariableStore& store, OperationBatch batch) {
  // Reads were answered then; here one may wait for ever.
  std::erase_if(batch.operations, [](const Operation& each) {
    return !changes_values(each) && !std::holds_alternative<CreateShard>(each);
  });
  std::optional<Error> problem;
  store.apply(std::move(batch), 0, [&](const BatchResult& result) { problem = result.error; });
  return problem;
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
