// Application of batches to the variables of a parameter server.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_store.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {

namespace {

template <class... Parts>
[[noreturn]] void refuse_operation(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

void check_spec(const ShardSpec& spec) {
  const bool is_whole_scalar = spec.whole_shape.rank() > 0 || spec.num_rows == 1;
  if (spec.shard >= 0 && spec.shard < spec.num_shards && spec.has_rows() && is_whole_scalar) return;
  refuse_operation(spec, ": no rows of shape ", spec.whole_shape, "; got ", spec.num_rows,
                   " rows from ", spec.first_row);
}

void check_value(const ShardSpec& spec, const Tensor& value) {
  if (!value.defined()) refuse_operation(spec, ": the value is undefined");
  if (value.shape() == spec.shape() && value.dtype() == spec.dtype) return;
  refuse_operation(spec, ": the value does not fit; expected ", spec.shape(), " of ", spec.dtype,
                   ", got ", value.shape(), " of ", value.dtype());
}

void check_rows(const ShardSpec& spec, const Tensor& rows) {
  if (spec.whole_shape.rank() == 0) refuse_operation(spec, ": a scalar has no rows");
  if (!rows.defined() || rows.rank() != 1 || rows.dtype() != DType::kInt64) {
    refuse_operation(spec, ": expected rows [n] of int64, got ",
                     rows.defined() ? concat(rows.shape(), " of ", rows.dtype()) : "none");
  }
  const auto numbers = rows.host_span<std::int64_t>();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= 0 && numbers[i] < spec.num_rows) continue;
    refuse_operation(spec, ": row out of range; expected 0 .. ", spec.num_rows - 1, ", got ",
                     numbers[i], " at position ", i);
  }
}

void check_row_values(const ShardSpec& spec, const Tensor& rows, const Tensor& values) {
  check_rows(spec, rows);
  if (!values.defined()) refuse_operation(spec, ": the rows' values are undefined");
  const Shape expected = spec.whole_shape.with_dim(0, rows.num_elements());
  if (values.shape() == expected && values.dtype() == spec.dtype) return;
  refuse_operation(spec, ": the rows' values do not fit; expected ", expected, " of ", spec.dtype,
                   ", got ", values.shape(), " of ", values.dtype());
}

void check_divisors(const ShardSpec& spec, const Tensor& values) {
  visit_dtype(values.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      if (std::ranges::count(values.host_span<T>(), T{0}) == 0) return;
      refuse_operation(spec, ": division of integers by zero");
    }
  });
}

void check_sync(const ShardSpec& spec, const SyncSpec& sync) {
  const bool are_ranks = sync.num_ranks >= 1 && sync.rank >= 0 && sync.rank < sync.num_ranks;
  const bool is_number = sync.num_to_aggregate >= 1 && sync.num_to_aggregate <= sync.num_ranks;
  if (are_ranks && is_number && std::isfinite(sync.divisor) && sync.divisor != 0.0) return;
  refuse_operation(spec, ": no synchronous update: rank ", sync.rank, " of ", sync.num_ranks, ", ",
                   sync.num_to_aggregate, " to aggregate, divided by ", sync.divisor);
}

Tensor first_value(const CreateShard& create) {
  if (const auto* value = std::get_if<Tensor>(&create.initial_value)) {
    check_value(create.spec, *value);
    return *value;
  }
  const ValueGenerator& generator = std::get<ValueGenerator>(create.initial_value);
  if (generator.shape != create.spec.whole_shape || generator.dtype != create.spec.dtype) {
    refuse_operation(create.spec, ": the generator makes ", generator.shape, " of ",
                     generator.dtype, "; expected ", create.spec.whole_shape, " of ",
                     create.spec.dtype);
  }
  return generator.rows(create.spec.first_row, create.spec.num_rows);
}

class Checker {
 public:
  Checker(std::uint64_t num_applied_before, const BatchLookups& lookups)
      : num_left_out_(num_applied_before), lookups_(lookups) {}

  void check(const Operation& operation) {
    CheckedOperation checked;
    checked.operation = &operation;
    if (changes_values(operation) && num_left_out_ > 0) {
      --num_left_out_;
      checked.was_applied_before = true;
      std::visit([&](const auto& each) { checked.shard = shard_of(each); }, operation);
    } else {
      std::visit([&](const auto& each) { check(each, checked); }, operation);
    }
    batch_.operations.push_back(std::move(checked));
  }

  void expect(std::size_t num_operations) { batch_.operations.reserve(num_operations); }
  CheckedBatch take() { return std::move(batch_); }

 private:
  StoredShard* find(ShardId id) const {
    if (const auto own = created_.find(id); own != created_.end()) return own->second;
    return lookups_.find_shard(id);
  }
  template <class Op>
  StoredShard* shard_of(const Op& operation) const {
    if constexpr (requires { operation.shard; }) {
      StoredShard* const found = find(operation.shard);
      if (!found) fail_unknown(operation.shard);
      return found;
    }
    return nullptr;
  }
  [[noreturn]] static void fail_unknown(ShardId id) {
    fail(ErrorCode::kNotFound, "there is no shard of the id ", id,
         "; expected one that was created here; the server may have been started again since");
  }

  void check(const CreateShard& create, CheckedOperation& checked) {
    check_spec(create.spec);
    checked.shard = find(create.spec.id());
    if (!checked.shard) {
      batch_.created.push_back(
          std::make_unique<StoredShard>(create.spec, first_value(create), lookups_.first_version));
      checked.shard = batch_.created.back().get();
      created_.emplace(checked.shard->id, checked.shard);
      return;
    }
    const ShardSpec &have = checked.shard->spec, &want = create.spec;
    if (have == want) return;
    refuse_operation(
        "two shards do not agree: ", have, " is there as rows ", have.first_row, " to ",
        have.first_row + have.num_rows, " of ", have.whole_shape, " of ", have.dtype,
        "; asked for was ", want, ", rows ", want.first_row, " to ", want.first_row + want.num_rows,
        " of ", want.whole_shape, " of ", want.dtype,
        have.variable == want.variable ? "" : " (their ids are equal: try another name)");
  }
  /// Checks operations that only have a shard, or a shard and rows.
  template <class Op>
  void check(const Op& operation, CheckedOperation& checked) {
    checked.shard = shard_of(operation);
    if constexpr (requires { operation.rows; }) check_rows(checked.shard->spec, operation.rows);
  }
  void check(const AssignShard& assign, CheckedOperation& checked) {
    checked.shard = shard_of(assign);
    const ShardSpec& spec = checked.shard->spec;
    check_value(spec, assign.value);
    if (assign.op != AssignOp::kAssign && spec.dtype == DType::kBool) {
      refuse_operation(spec, ".", assign.op, ": expected a number type, got bool; try assign()");
    }
  }
  void check(const ScatterShard& scatter, CheckedOperation& checked) {
    checked.shard = shard_of(scatter);
    const ShardSpec& spec = checked.shard->spec;
    check_row_values(spec, scatter.rows, scatter.values);
    if (scatter.op != ScatterOp::kUpdate && spec.dtype == DType::kBool) {
      refuse_operation(spec, ".", scatter.op, ": expected a number type, got bool");
    }
    if (scatter.op == ScatterOp::kDivide) check_divisors(spec, scatter.values);
  }
  void check(const StoreOrder&, CheckedOperation&) {
    refuse_operation("an order; expected it to be the first of its batch");
  }
  void check(const ReportWorker& report, CheckedOperation&) {
    if (report.worker >= 0) return;
    refuse_operation("a report of worker ", report.worker, "; expected a rank >= 0");
  }
  void check_add_once(const UpdateShard& update, CheckedOperation& checked) {
    const ShardSpec& spec = checked.shard->spec;
    if (spec.dtype == DType::kBool || !update.sync || update.rows || !update.slots.empty()) {
      refuse_operation(spec, ": ", kAddOnce,
                       ": expected a number of a synchronous step, without slots");
    }
    check_value(spec, update.gradient);
    check_sync(spec, *update.sync);
    batch_.has_sync = true;
  }
  void check(const UpdateShard& update, CheckedOperation& checked) {
    checked.shard = shard_of(update);
    if (update.rule == kAddOnce) return check_add_once(update, checked);
    checked.rule = rule_of(update);
    const ShardSpec& spec = checked.shard->spec;
    if (spec.dtype != DType::kFloat32 && spec.dtype != DType::kFloat64) {
      refuse_operation(spec, ": expected float32 or float64 for ", checked.rule->name(), ", got ",
                       spec.dtype);
    }
    if (checked.rule->uses_norms() && spec.num_shards > 1) {
      refuse_operation(
          spec, ": ", checked.rule->name(),
          " needs the norm of the whole variable; expected one that is not cut; try a strategy "
          "without partitioner");
    }
    check_slots(update, checked);
    if (update.rows) {
      check_row_values(spec, *update.rows, update.gradient);
    } else {
      check_value(spec, update.gradient);
    }
    if (update.scalars.live != nullptr) refuse_operation(spec, ": scalars of a captured step");
    if (!update.sync) return;
    check_sync(spec, *update.sync);
    batch_.has_sync = true;
  }
  /// Returns the rule of an update. Most batches have only one.
  std::shared_ptr<const UpdateRule> rule_of(const UpdateShard& update) {
    if (!rule_ || !(update.rule == description_)) {
      rule_ = lookups_.find_rule(update.rule);
      description_ = update.rule;
      num_slots_ = rule_->slots().size();
    }
    return rule_;
  }
  void check_slots(const UpdateShard& update, CheckedOperation& checked) const {
    const ShardSpec& spec = checked.shard->spec;
    if (num_slots_ != update.slots.size()) {
      refuse_operation(spec, ": ", checked.rule->name(), " has ", num_slots_, " slots, got ",
                       update.slots.size());
    }
    if (num_slots_ == 0) return;
    std::set<ShardId> seen = {update.shard};
    for (const ShardId id : update.slots) {
      StoredShard* const slot = find(id);
      if (!slot) fail_unknown(id);
      const ShardSpec& own = slot->spec;
      const bool fits = own.whole_shape == spec.whole_shape && own.dtype == spec.dtype &&
                        own.first_row == spec.first_row && own.num_rows == spec.num_rows;
      if (!fits || !seen.insert(id).second) {
        refuse_operation(spec, ": ", own,
                         " is no slot of it; expected other shards of the same rows of ",
                         spec.whole_shape, " of ", spec.dtype);
      }
      checked.slots.push_back(slot);
    }
  }

  std::uint64_t num_left_out_;
  const BatchLookups& lookups_;
  std::shared_ptr<const UpdateRule> rule_;  // rule of the last update, cached with its properties
  SharedText description_;
  std::size_t num_slots_ = 0;
  CheckedBatch batch_;
  std::map<ShardId, StoredShard*> created_;
};

}  // namespace

std::vector<StoredShard*> CheckedOperation::shards() const {
  std::vector<StoredShard*> all = slots;
  if (shard) all.push_back(shard);
  return all;
}

namespace {

/// Statistics lock every shard, so the batch must not have locked one.
void check_statistics(const OperationBatch& batch) {
  const bool has_statistics = std::ranges::any_of(batch.operations, [](const Operation& operation) {
    return std::holds_alternative<ReadStatistics>(operation);
  });
  if (!has_statistics || batch.operations.size() == 1) return;
  refuse_operation("statistics: expected a batch of their own, got ", batch.operations.size(),
                   " operations");
}

}  // namespace

CheckedBatch check_batch(const OperationBatch& batch, std::uint64_t num_applied_before,
                         const BatchLookups& lookups) {
  Checker checker(num_applied_before, lookups);
  checker.expect(batch.operations.size());
  for (std::size_t i = 0; i < batch.operations.size(); ++i) {
    try {
      checker.check(batch.operations[i]);
    } catch (const Error& error) {
      throw error.with_context(concat("operation ", i, " of ", batch.operations.size()));
    }
  }
  check_statistics(batch);
  return checker.take();
}

void try_sync_updates(const CheckedBatch& batch) {
  struct Trial {
    SyncAccumulator accumulator;
    std::uint64_t num_steps;
  };
  std::map<ShardId, Trial> trials;
  for (const CheckedOperation& each : batch.operations) {
    const auto* update = std::get_if<UpdateShard>(each.operation);
    if (!update || !update->sync || each.was_applied_before) continue;
    StoredShard& shard = *each.shard;
    auto& trial =
        trials.try_emplace(shard.id, Trial{shard.accumulator, shard.num_steps}).first->second;
    try {
      (void)trial.accumulator.take(*update, trial.num_steps);
    } catch (const Error& error) {
      throw error.with_context(shard.spec.to_string());
    }
    while (trial.accumulator.drop_complete(trial.num_steps)) ++trial.num_steps;
  }
}

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

std::vector<StoredShard*> shards_of(const CheckedBatch& batch) {
  std::vector<StoredShard*> shards;
  for (const CheckedOperation& each : batch.operations) {
    for (StoredShard* shard : each.shards()) shards.push_back(shard);
  }
  return shards;
}

/// Returns a copy for an accumulator: tensors of a batch may share the memory of the whole request.
UpdateShard in_own_memory(const UpdateShard& update) {
  const auto own = [](const Tensor& tensor) {
    MutableTensor copy;
    copy.assign(tensor);  // copies tensors that are part of a larger buffer
    return copy.freeze();
  };
  UpdateShard kept = update;
  kept.gradient = own(update.gradient);
  if (update.rows) kept.rows = own(*update.rows);
  return kept;
}

}  // namespace

VariableStore::VariableStore(std::string name, std::uint64_t incarnation, bool is_open)
    : name_(std::move(name)), first_version_((incarnation << 32) + 1), is_open_(is_open) {}

VariableStore::~VariableStore() {
  fail_waiting_reads(Error(ErrorCode::kUnavailable, "the server ended; the step did not come"));
}

std::shared_ptr<PendingAnswers> VariableStore::start(OperationBatch batch) {
  auto awaited = std::make_shared<AwaitedAnswers>(name_);
  apply(std::move(batch), 0, [awaited](BatchResult result) { awaited->give(std::move(result)); });
  return awaited;
}

void VariableStore::apply(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done) {
  if (!hold(batch, owner, done)) apply_now(std::move(batch), owner, std::move(done));
}

bool VariableStore::hold(OperationBatch& batch, std::uint64_t owner, BatchAnswers::Done& done) {
  if (order_in(batch) != nullptr) return false;
  const MutexLock lock(mutex_);
  if (is_open_ && !serves_held_) return false;
  held_.push_back({std::move(batch), owner, std::move(done)});
  return true;
}

void VariableStore::serve_held() {
  for (;;) {
    std::optional<Held> next;
    {
      const MutexLock lock(mutex_);
      if (!is_open_ || held_.empty()) {
        serves_held_ = false;
        return;
      }
      next = std::move(held_.front());
      held_.pop_front();
    }
    apply_now(std::move(next->batch), next->owner, std::move(next->done));
  }
}

/// Refuses closures of a lost run, whose workers may live for a while and reach these servers.
void VariableStore::require_run(const OperationBatch& batch) const {
  const bool is_of_closure = batch.stream.kind == UpdateStream::Kind::kClosure;
  if (!is_of_closure || run_ == 0 || batch.run == run_) return;
  fail(ErrorCode::kAborted, to_string(batch.stream),
       ": it belongs to a run whose chief has exited");
}

void VariableStore::apply_now(OperationBatch batch, std::uint64_t owner, BatchAnswers::Done done) {
  const NoDeviceScope values_are_on_the_host;  // also if the server is in a replica's process
  Call call;
  call.owner = owner;
  if (owner != 0 && batch.stream.kind == UpdateStream::Kind::kClient) {
    const MutexLock lock(mutex_);
    clients_of_[owner].insert(batch.stream.id);
  }
  call.answers = std::make_shared<BatchAnswers>(batch.operations.size(), std::move(done));
  std::optional<Error> refused;
  try {
    if (const StoreOrder* const order = order_in(batch)) {
      obey(*order, batch, call);
    } else {
      run(batch, call);
    }
  } catch (const Error& error) {
    refused = error;
  } catch (const std::exception& error) {
    refused = Error(ErrorCode::kInternal, error.what());
  }
  if (call.serves_held) serve_held();
  if (!refused) return;
  {
    const MutexLock lock(mutex_);
    ++statistics_.num_refused;
  }
  call.answers->fail(*refused);
}

void VariableStore::run(const OperationBatch& batch, Call& call) {
  const ChangeIdentity identity = identity_of(batch);
  {
    const std::span<Mutex> streams = streams_;
    const MutexRow own_stream(
        streams.subspan(stripe_of(batch.stream, kNumStripes), identity.num_changes > 0 ? 1 : 0));
    std::uint64_t num_applied_before = 0;
    {
      const MutexLock lock(mutex_);
      fail_if_broken();
      require_run(batch);
      num_applied_before = table_.num_applied_before(identity);
    }
    const CheckedBatch checked = check(batch, num_applied_before);
    apply_checked(checked, call);
    const MutexLock lock(mutex_);
    table_.note_applied(identity);
    ++statistics_.num_batches;
    statistics_.num_reads += call.num_reads;
    statistics_.num_reads_unchanged += call.num_reads_unchanged;
    statistics_.num_changes += identity.num_changes - num_applied_before;
    statistics_.num_applied_before += num_applied_before;
  }
  call.answers->let_go();
  if (call.hopeless) call.answers->fail(*call.hopeless);
  for (EndedRead& read : call.ended) read.answers->set(read.index, std::move(read.answer));
  if (call.has_ended) fail_hopeless_reads();
}

CheckedBatch VariableStore::check(const OperationBatch& batch, std::uint64_t num_applied_before) {
  ask_for_shards(batch);
  const BatchLookups lookups{
      [this](ShardId id) { return find_shard(id); },
      [this](const std::string& description) { return find_rule(description); }, first_version_};
  if (!creates(batch)) return check_batch(batch, num_applied_before, lookups);
  const MutexLock creation(creation_);
  CheckedBatch checked = check_batch(batch, num_applied_before, lookups);
  const MutexLock lock(mutex_);
  for (auto& shard : checked.created) shards_.emplace(shard->id, std::move(shard));
  return checked;
}

void VariableStore::apply_checked(const CheckedBatch& batch, Call& call) {
  // The locks are held until the updates are applied: other ranks' gradients may arrive meanwhile.
  const bool locks_all = batch.has_sync;
  const ShardLocks all(locks_all ? shards_of(batch) : std::vector<StoredShard*>{});
  if (locks_all) try_sync_updates(batch);
  try {
    for (std::size_t i = 0; i < batch.operations.size(); ++i) {
      const CheckedOperation& each = batch.operations[i];
      std::optional<ShardLocks> own;
      if (!locks_all && each.shard != nullptr) {
        if (each.slots.empty()) {
          own.emplace(*each.shard);
        } else {
          own.emplace(each.shards());
        }
      }
      apply_one(each, i, call);
    }
  } catch (const std::exception& error) {
    const MutexLock lock(mutex_);
    why_broken_ = error.what();
    throw;
  }
}

void VariableStore::apply_one(const CheckedOperation& checked, std::size_t index, Call& call) {
  const Operation& operation = *checked.operation;
  const auto start = [&](const auto& read) {
    read_now_or_later({call.answers, index, read, read.at_least_steps, checked.shard, call.owner},
                      call);
  };
  if (const auto* read = std::get_if<ReadShard>(&operation)) return start(*read);
  if (const auto* rows = std::get_if<ReadRows>(&operation)) return start(*rows);
  OperationAnswer answer;
  if (std::holds_alternative<ReadStatistics>(operation)) {
    answer.value = statistics().to_tensor();
  } else if (const auto* report = std::get_if<ReportWorker>(&operation)) {
    const MutexLock lock(mutex_);
    if (report->has_ended) {
      ended_workers_.insert(report->worker);
    } else {
      ended_workers_.erase(report->worker);
    }
    call.has_ended |= report->has_ended;
  } else {
    if (changes_values(operation) && !checked.was_applied_before) change(checked, call.ended);
    answer = checked.shard->answer();
    answer.was_applied_before = checked.was_applied_before;
  }
  call.answers->set(index, std::move(answer));
}

/// Requires: the shard is locked. No callback runs here: let_go() of the batch comes later.
void VariableStore::read_now_or_later(WaitingRead read, Call& call) {
  StoredShard& shard = *read.shard;
  if (read.at_least_steps > shard.num_steps) {
    auto why = shard.why_no_step(ended_workers());
    if (!why) return shard.waiting.push_back(std::move(read));
    call.hopeless = std::move(why);
    return;
  }
  OperationAnswer answer = shard.read(read);
  ++call.num_reads;
  call.num_reads_unchanged += answer.value ? 0 : 1;
  read.answers->set(read.index, std::move(answer));
}

void VariableStore::change(const CheckedOperation& operation, std::vector<EndedRead>& ended) {
  StoredShard& shard = *operation.shard;
  if (const auto* update = std::get_if<UpdateShard>(operation.operation)) {
    if (update->sync) return take_sync(operation, *update, ended);
    count_staleness(*update, shard.version);
    return shard.update(*operation.rule, operation.slots, *update);
  }
  if (const auto* assign = std::get_if<AssignShard>(operation.operation)) {
    shard.value.assign(assign->op, assign->value);
  } else {
    const ScatterShard& scatter = std::get<ScatterShard>(*operation.operation);
    shard.value.scatter(scatter.op, {scatter.values, scatter.rows, shard.spec.shape()},
                        shard.spec.variable);
  }
  ++shard.version;
}

void VariableStore::take_sync(const CheckedOperation& operation, const UpdateShard& update,
                              std::vector<EndedRead>& ended) {
  StoredShard& shard = *operation.shard;
  const SyncAccumulator::Taken taken =
      shard.accumulator.take(in_own_memory(update), shard.num_steps);
  shard.num_ranks = update.sync->num_ranks;
  shard.num_to_aggregate = update.sync->num_to_aggregate;
  std::uint64_t num_complete = 0;
  while (auto complete = shard.accumulator.take_complete(shard.num_steps, shard.spec.shape())) {
    if (operation.rule) {
      shard.update(*operation.rule, operation.slots, *complete);
    } else {  // kAddOnce
      shard.value.assign(AssignOp::kAdd, complete->gradient);
      ++shard.version;
    }
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

/// The lower half of a version counts changes (first_version_); a restart begins another count.
void VariableStore::count_staleness(const UpdateShard& update, std::uint64_t version) {
  constexpr std::uint64_t kChanges = 0xFFFFFFFF;
  const std::uint64_t then = update.computed_at_version & kChanges, now = version & kChanges;
  if (update.computed_at_version == 0 || then > now) return;
  const MutexLock lock(mutex_);
  ++statistics_.staleness[std::min(now - then, ServerStatistics::kGreatestDifference)];
}

void VariableStore::fail_if_broken() const {
  if (why_broken_.empty()) return;
  fail(ErrorCode::kDataLoss,
       "a batch was applied in part, because an update failed that had passed all checks (",
       why_broken_, "); the values are not whole any more; expected a restart from a checkpoint");
}

/// Prefetches the shards of a large batch: cache misses would be waited for one by one.
void VariableStore::ask_for_shards(const OperationBatch& batch) const {
  constexpr std::size_t kWorthIt = 16;
  if (batch.operations.size() < kWorthIt) return;
  const MutexLock lock(mutex_);
  for (const Operation& operation : batch.operations) {
    const auto* const update = std::get_if<UpdateShard>(&operation);
    const auto* const read = std::get_if<ReadShard>(&operation);
    const auto* const assign = std::get_if<AssignShard>(&operation);
    const ShardId id = update ? update->shard : read ? read->shard : assign ? assign->shard : 0;
    if (const auto found = shards_.find(id); found != shards_.end()) {
      __builtin_prefetch(found->second.get());
      __builtin_prefetch(&found->second->value);
    }
  }
}

StoredShard* VariableStore::find_shard(ShardId id) const {
  const MutexLock lock(mutex_);
  const auto found = shards_.find(id);
  return found == shards_.end() ? nullptr : found->second.get();
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
