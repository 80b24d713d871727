// The variables of a parameter server: from a batch to its answers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/variable_store.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tutti/optimizer/update_rule_spec.h"

namespace tutti::internal {

namespace {

std::size_t stripe_of(const UpdateStream& stream, std::size_t num_stripes) {
  const std::uint64_t mixed =
      (stream.id * 31 + stream.replica * 7 + static_cast<std::uint64_t>(stream.kind)) *
      0x9E3779B97F4A7C15;
  return static_cast<std::size_t>(mixed >> 32) % num_stripes;
}

bool creates(const OperationBatch& batch) {
  return std::ranges::any_of(batch.operations, [](const Operation& operation) {
    return std::holds_alternative<CreateShard>(operation);
  });
}

}  // namespace

VariableStore::VariableStore(std::string name, std::uint64_t incarnation)
    : name_(std::move(name)), first_version_((incarnation << 32) + 1) {}

VariableStore::~VariableStore() {
  fail_waiting_reads(Error(ErrorCode::kUnavailable, "the server ended; the step did not come"));
}

std::shared_ptr<PendingAnswers> VariableStore::start(OperationBatch batch) {
  auto awaited = std::make_shared<AwaitedAnswers>(name_);
  apply(std::move(batch), 0, [awaited](BatchResult result) { awaited->give(std::move(result)); });
  return awaited;
}

void VariableStore::apply(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done) {
  const auto answers = std::make_shared<BatchAnswers>(batch.operations.size(), std::move(done));
  std::optional<Error> refused;
  try {
    run(batch, owner, answers);
  } catch (const Error& error) {
    refused = error;
  } catch (const std::exception& error) {
    refused = Error(ErrorCode::kInternal, error.what());
  }
  if (!refused) return;
  {
    const MutexLock lock(mutex_);
    ++statistics_.num_refused;
  }
  answers->fail(*refused);
}

void VariableStore::run(const OperationBatch& batch, std::uint64_t owner,
                        const std::shared_ptr<BatchAnswers>& answers) {
  const ChangeIdentity identity = identity_of(batch);
  std::vector<EndedRead> ended;
  {
    const std::span<Mutex> streams = streams_;
    const MutexRow own_stream(
        streams.subspan(stripe_of(batch.stream, kNumStripes), identity.num_changes > 0 ? 1 : 0));
    std::uint64_t num_applied_before = 0;
    {
      const MutexLock lock(mutex_);
      fail_if_broken();
      num_applied_before = table_.num_applied_before(identity);
    }
    const CheckedBatch checked = check(batch, num_applied_before);
    apply_checked(checked, owner, answers, ended);
    const MutexLock lock(mutex_);
    table_.note_applied(identity);
    ++statistics_.num_batches;
    statistics_.num_changes += identity.num_changes - num_applied_before;
    statistics_.num_applied_before += num_applied_before;
  }
  answers->let_go();
  for (EndedRead& read : ended) read.answers->set(read.index, std::move(read.answer));
}

CheckedBatch VariableStore::check(const OperationBatch& batch, std::uint64_t num_applied_before) {
  const BatchLookups lookups{
      [this](ShardId id) { return find_shard(id); },
      [this](const std::string& description) { return find_rule(description); }, first_version_};
  if (!creates(batch)) return check_batch(batch, num_applied_before, lookups);
  const MutexLock creation(creation_);
  CheckedBatch checked = check_batch(batch, num_applied_before, lookups);
  const MutexLock lock(mutex_);
  for (const auto& shard : checked.created) shards_.emplace(shard->id, shard);
  return checked;
}

void VariableStore::apply_checked(const CheckedBatch& batch, std::uint64_t owner,
                                  const std::shared_ptr<BatchAnswers>& answers,
                                  std::vector<EndedRead>& ended) {
  std::vector<StoredShard*> at_once;
  if (batch.has_sync) {  // whether ranks agree can change until it is applied
    for (const CheckedOperation& each : batch.operations) {
      for (StoredShard* shard : each.shards()) at_once.push_back(shard);
    }
  }
  ShardLocks all(std::move(at_once));
  if (batch.has_sync) try_sync_updates(batch);
  try {
    for (std::size_t i = 0; i < batch.operations.size(); ++i) {
      const ShardLocks own(batch.has_sync ? std::vector<StoredShard*>{}
                                          : batch.operations[i].shards());
      apply_one(batch.operations[i], i, owner, answers, ended);
    }
  } catch (const std::exception& error) {
    const MutexLock lock(mutex_);
    why_broken_ = error.what();
    throw;
  }
}

void VariableStore::apply_one(const CheckedOperation& operation, std::size_t index,
                              std::uint64_t owner, const std::shared_ptr<BatchAnswers>& answers,
                              std::vector<EndedRead>& ended) {
  StoredShard& shard = *operation.shard;
  if (const auto* read = std::get_if<ReadShard>(operation.operation)) {
    return read_now_or_later(shard, *read, {answers, index, *read, read->at_least_steps, owner});
  }
  if (const auto* read = std::get_if<ReadRows>(operation.operation)) {
    return read_now_or_later(shard, *read, {answers, index, *read, read->at_least_steps, owner});
  }
  if (changes_values(*operation.operation) && !operation.was_applied_before) {
    change(operation, ended);
  }
  OperationAnswer answer = shard.answer();
  answer.was_applied_before = operation.was_applied_before;
  answers->set(index, std::move(answer));
}

template <class Read>
void VariableStore::read_now_or_later(StoredShard& shard, const Read& read, WaitingRead later) {
  if (later.at_least_steps > shard.num_steps) {
    shard.waiting.push_back(std::move(later));
    return;
  }
  OperationAnswer answer = shard.read(read);
  count_read(!answer.value);
  // The batch has not been let go: nobody is called while the shard is locked.
  later.answers->set(later.index, std::move(answer));
}

void VariableStore::change(const CheckedOperation& operation, std::vector<EndedRead>& ended) {
  StoredShard& shard = *operation.shard;
  if (const auto* update = std::get_if<UpdateShard>(operation.operation)) {
    if (update->sync) return take_sync(operation, *update, ended);
    if (update->computed_at_version != 0 && update->computed_at_version <= shard.version) {
      const MutexLock lock(mutex_);
      ++statistics_.staleness[shard.version - update->computed_at_version];
    }
    std::vector<StoredShard*> slots = operation.shards();
    slots.erase(slots.begin());
    return shard.update(*operation.rule, slots, *update);
  }
  if (const auto* assign = std::get_if<AssignShard>(operation.operation)) {
    shard.value.assign(assign->op, assign->value);
  } else if (const auto* scatter = std::get_if<ScatterShard>(operation.operation)) {
    shard.value.scatter(scatter->op, {scatter->values, scatter->rows, shard.spec.shape()},
                        shard.spec.variable);
  } else {
    shard.value.assign(AssignOp::kAssign, std::get<RestoreShard>(*operation.operation).value);
  }
  ++shard.version;
}

void VariableStore::take_sync(const CheckedOperation& operation, const UpdateShard& update,
                              std::vector<EndedRead>& ended) {
  StoredShard& shard = *operation.shard;
  std::vector<StoredShard*> slots = operation.shards();
  slots.erase(slots.begin());
  const SyncAccumulator::Taken taken = shard.accumulator.take(update, shard.num_steps);
  std::uint64_t num_complete = 0;
  while (auto complete = shard.accumulator.take_complete(shard.num_steps, shard.spec.shape())) {
    shard.update(*operation.rule, slots, *complete);
    ++shard.num_steps;
    ++num_complete;
  }
  const std::size_t num_ended_before = ended.size();
  if (num_complete > 0) shard.end_waiting(ended);
  const MutexLock lock(mutex_);
  statistics_.num_sync_steps += num_complete;
  statistics_.num_reads += ended.size() - num_ended_before;
  statistics_.num_stale_dropped += taken == SyncAccumulator::Taken::kStale ? 1 : 0;
  statistics_.num_rank_duplicates += taken == SyncAccumulator::Taken::kDuplicate ? 1 : 0;
}

void VariableStore::count_read(bool is_unchanged) {
  const MutexLock lock(mutex_);
  ++statistics_.num_reads;
  statistics_.num_reads_unchanged += is_unchanged ? 1 : 0;
}

void VariableStore::fail_if_broken() const {
  if (why_broken_.empty()) return;
  fail(ErrorCode::kDataLoss,
       "a batch was applied in part, because an update failed that had passed all checks (",
       why_broken_, "); the values are not whole any more; expected a restart from a checkpoint");
}

std::shared_ptr<StoredShard> VariableStore::find_shard(ShardId id) const {
  const MutexLock lock(mutex_);
  const auto found = shards_.find(id);
  return found == shards_.end() ? nullptr : found->second;
}

std::shared_ptr<const UpdateRule> VariableStore::find_rule(const std::string& description) {
  constexpr std::size_t kMostRules = 1024;
  {
    const MutexLock lock(mutex_);
    if (const auto found = rules_.find(description); found != rules_.end()) return found->second;
  }
  auto rule = make_update_rule(description);
  const MutexLock lock(mutex_);
  if (rules_.size() >= kMostRules) rules_.clear();
  rules_.emplace(description, rule);
  return rule;
}

}  // namespace tutti::internal
