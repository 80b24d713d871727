// Implements VariableStore: applies batches to the variables of a parameter server.
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
  refuse_operation(spec, ": expected rows of a variable of shape ", spec.whole_shape, ", got ",
                   spec.num_rows, " rows from row ", spec.first_row);
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
  refuse_operation(spec, ": invalid synchronous update: rank ", sync.rank, " of ", sync.num_ranks,
                   ", ", sync.num_to_aggregate, " to aggregate, divided by ", sync.divisor);
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

/// Returns a copy that an accumulator can keep, because tensors of a batch may share the memory of
/// the whole request.
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

/// An operation with the objects that it names.
struct VariableStore::CheckedOperation {
  const Operation* operation = nullptr;
  StoredShard* shard = nullptr;                 // nullptr: the operation has no shard
  std::vector<StoredShard*> slots = {};         // slots of an update
  std::shared_ptr<const UpdateRule> rule = {};  // rule of an update; nullptr for kAddOnce
  bool was_applied_before = false;
};

/// Checks the operations of a batch. For the first `num_applied_before` operations that change
/// values, checks only that the shards exist. Throws kNotFound for an unknown shard, and
/// kInvalidArgument for an invalid operation, naming its number and its variable. The operations
/// must outlive the result.
class VariableStore::Checker {
 public:
  using FindRule = std::function<std::shared_ptr<const UpdateRule>(const std::string&)>;
  /// `first_version` is the version number given to shards that the batch creates.
  Checker(Shards& shards, FindRule find_rule, std::uint64_t num_applied_before,
          std::uint64_t first_version)
      : shards_(shards),
        find_rule_(std::move(find_rule)),
        num_left_out_(num_applied_before),
        first_version_(first_version) {}

  Checked check_all(std::span<const Operation> operations) {
    prefetch(operations);
    checked_.reserve(operations.size());
    for (std::size_t i = 0; i < operations.size(); ++i) {
      try {
        check(operations[i]);
      } catch (const Error& error) {
        throw error.with_context(concat("operation ", i, " of ", operations.size()));
      }
    }
    if (has_sync_) try_sync_updates();
    return std::move(checked_);
  }
  /// Adds the shards that the batch creates.
  void add_shards() {
    for (auto& [id, shard] : created_) shards_.emplace(id, std::move(shard));
  }

 private:
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
    checked_.push_back(std::move(checked));
  }

  /// Prefetches the shards that a large batch uses, so that their cache misses overlap.
  void prefetch(std::span<const Operation> operations) const {
    constexpr std::size_t kWorthIt = 16;
    if (operations.size() < kWorthIt) return;
    for (const Operation& operation : operations) {
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
  StoredShard* find(ShardId id) const {
    if (const auto own = created_.find(id); own != created_.end()) return own->second.get();
    const auto found = shards_.find(id);
    return found == shards_.end() ? nullptr : found->second.get();
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
    fail(ErrorCode::kNotFound, "there is no shard with the id ", id,
         "; expected one that was created here; the server may have been restarted");
  }

  void check(const CreateShard& create, CheckedOperation& checked) {
    check_spec(create.spec);
    checked.shard = find(create.spec.id());
    if (!checked.shard) {
      auto made = std::make_unique<StoredShard>(create.spec, first_value(create), first_version_);
      checked.shard = made.get();
      created_.emplace(made->id, std::move(made));
      return;
    }
    const ShardSpec &have = checked.shard->spec, &want = create.spec;
    if (have == want) return;
    refuse_operation(
        "two shards do not agree: the server has ", have, " as rows ", have.first_row, " to ",
        have.first_row + have.num_rows, " of ", have.whole_shape, " of ", have.dtype,
        "; the request has ", want, " as rows ", want.first_row, " to ",
        want.first_row + want.num_rows, " of ", want.whole_shape, " of ", want.dtype,
        have.variable == want.variable ? "" : " (their ids are equal: try another name)");
  }
  /// Checks the shard and, if present, the rows of an operation that needs no other checks.
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
      refuse_operation(spec, ".", assign.op, ": expected a numeric type, got bool; call assign()");
    }
  }
  void check(const ScatterShard& scatter, CheckedOperation& checked) {
    checked.shard = shard_of(scatter);
    const ShardSpec& spec = checked.shard->spec;
    check_row_values(spec, scatter.rows, scatter.values);
    if (scatter.op != ScatterOp::kUpdate && spec.dtype == DType::kBool) {
      refuse_operation(spec, ".", scatter.op, ": expected a numeric type, got bool");
    }
    if (scatter.op == ScatterOp::kDivide) check_divisors(spec, scatter.values);
  }
  void check(const StoreOrder&, CheckedOperation&) {
    refuse_operation(
        "expected a StoreOrder only as the first operation of a batch, got one after it");
  }
  void check(const ReportWorker& report, CheckedOperation&) {
    if (report.worker >= 0) return;
    refuse_operation("ReportWorker: expected a rank >= 0, got ", report.worker);
  }
  void check_add_once(const UpdateShard& update, CheckedOperation& checked) {
    const ShardSpec& spec = checked.shard->spec;
    if (spec.dtype == DType::kBool || !update.sync || update.rows || !update.slots.empty()) {
      refuse_operation(
          spec, ": ", kAddOnce,
          ": expected a numeric variable and a synchronous update without rows and slots");
    }
    check_value(spec, update.gradient);
    check_sync(spec, *update.sync);
    has_sync_ = true;
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
          " needs the norm of the whole variable; expected a variable in one shard; try a strategy "
          "without a partitioner");
    }
    check_slots(update, checked);
    if (update.rows) {
      check_row_values(spec, *update.rows, update.gradient);
    } else {
      check_value(spec, update.gradient);
    }
    if (update.scalars.live != nullptr)
      refuse_operation(spec, ": expected constant scalars, got those of a captured step");
    if (!update.sync) return;
    check_sync(spec, *update.sync);
    has_sync_ = true;
  }
  /// Returns the rule of an update, caching the last rule, because most batches use only one.
  std::shared_ptr<const UpdateRule> rule_of(const UpdateShard& update) {
    if (!rule_ || !(update.rule == description_)) {
      rule_ = find_rule_(update.rule);
      description_ = update.rule;
      num_slots_ = rule_->slots().size();
    }
    return rule_;
  }
  void check_slots(const UpdateShard& update, CheckedOperation& checked) const {
    const ShardSpec& spec = checked.shard->spec;
    if (num_slots_ != update.slots.size()) {
      refuse_operation(spec, ": expected ", num_slots_, " slots for ", checked.rule->name(),
                       ", got ", update.slots.size());
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
        refuse_operation(spec, ": slot ", own, ": expected another shard with the same rows of ",
                         spec.whole_shape, " of ", spec.dtype);
      }
      checked.slots.push_back(slot);
    }
  }

  /// Tries the synchronous updates on copies of the accumulators. Throws the same errors as
  /// SyncAccumulator::take().
  void try_sync_updates() const {
    struct Trial {
      SyncAccumulator accumulator;
      std::uint64_t num_steps;
    };
    std::map<ShardId, Trial> trials;
    for (const CheckedOperation& each : checked_) {
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

  Shards& shards_;
  const FindRule find_rule_;
  std::uint64_t num_left_out_;
  const std::uint64_t first_version_;
  std::shared_ptr<const UpdateRule> rule_;  // rule of the last update, cached with its properties
  SharedText description_;
  std::size_t num_slots_ = 0;
  Checked checked_;
  std::map<ShardId, std::unique_ptr<StoredShard>> created_;
  bool has_sync_ = false;
};

VariableStore::VariableStore(std::string name, std::uint64_t incarnation, bool is_open)
    : name_(std::move(name)), first_version_((incarnation << 32) + 1), is_open_(is_open) {}

VariableStore::~VariableStore() {
  fail_waiting_reads(Error(ErrorCode::kUnavailable,
                           "the server shut down before the synchronous step was complete"));
}

std::shared_ptr<PendingAnswers> VariableStore::start(OperationBatch batch) {
  auto awaited = std::make_shared<AwaitedAnswers>(name_);
  apply(std::move(batch), 0,
        [awaited](BatchResult result) { awaited->set_result(std::move(result)); });
  return awaited;
}

void VariableStore::apply(OperationBatch batch, std::uint64_t owner, BatchDone done) {
  Results results;
  {
    const MutexLock lock(mutex_);
    if (!is_open_ && order_in(batch) == nullptr) {
      held_.push_back({std::move(batch), owner, std::move(done)});
      return;
    }
    apply_now(std::move(batch), owner, std::move(done), results);
  }
  deliver(results);
}

void VariableStore::deliver(Results& results) {
  for (auto& [done, result] : results) done(std::move(result));
}

namespace {

/// Decrements num_missing, which counts the waiting reads and the batch itself. When it becomes 0,
/// adds the batch's result to `results`.
template <class Results>
void count_answer(BatchAnswers& batch, Results& results) {
  if (--batch.num_missing > 0 || !batch.done) return;
  results.emplace_back(std::exchange(batch.done, nullptr),
                       BatchResult{std::move(batch.answers), std::nullopt});
}

template <class Results>
void fail_batch(BatchAnswers& batch, const Error& error, Results& results) {
  if (batch.done) results.emplace_back(std::exchange(batch.done, nullptr), BatchResult{{}, error});
}

}  // namespace

void VariableStore::apply_now(OperationBatch batch, std::uint64_t owner, BatchDone done,
                              Results& results) {
  const NoDeviceScope values_are_on_the_host;  // needed if the server runs in a replica's process
  if (owner != 0 && batch.stream.kind == UpdateStream::Kind::kClient) {
    clients_of_[owner].insert(batch.stream.id);
  }
  const std::size_t count = batch.operations.size();
  const auto answers = std::make_shared<BatchAnswers>(
      BatchAnswers{std::vector<OperationAnswer>(count), 1, std::move(done)});
  try {
    if (const StoreOrder* const order = order_in(batch)) {
      run_order(*order, batch, answers->answers, results);
    } else {
      run(batch, owner, answers, results);
    }
    count_answer(*answers, results);
  } catch (const Error& error) {
    fail_batch(*answers, error, results);
  } catch (const std::exception& error) {
    fail_batch(*answers, Error(ErrorCode::kInternal, error.what()), results);
  }
}

/// Refuses closures from a lost run, whose workers may survive for a while and still reach these
/// servers.
void VariableStore::require_run(const OperationBatch& batch) const {
  const bool is_of_closure = batch.stream.kind == UpdateStream::Kind::kClosure;
  if (!is_of_closure || run_ == 0 || batch.run == run_) return;
  fail(ErrorCode::kAborted, to_string(batch.stream),
       ": this closure belongs to a run whose chief has exited");
}

void VariableStore::fail_if_broken() const {
  if (why_broken_.empty()) return;
  fail(ErrorCode::kDataLoss,
       "values are inconsistent, because a batch was applied only in part: an update passed all "
       "checks but failed (",
       why_broken_, "); restart from a checkpoint");
}

void VariableStore::run(const OperationBatch& batch, std::uint64_t owner,
                        const std::shared_ptr<BatchAnswers>& answers, Results& results) {
  fail_if_broken();
  require_run(batch);
  const ChangeIdentity identity = identity_of(batch);
  const std::uint64_t num_applied_before = table_.num_applied_before(identity);
  Checker checker(shards_, rule_finder(), num_applied_before, first_version_);
  const Checked checked = checker.check_all(batch.operations);
  checker.add_shards();
  try {
    for (std::size_t i = 0; i < checked.size(); ++i) {
      const auto start = [&, this](const auto& wanted) TUTTI_REQUIRES(mutex_) {
        StoredShard& shard = *checked[i].shard;
        if (wanted.at_least_steps <= shard.num_steps) {
          answers->answers[i] = counted(shard.read(wanted));
        } else {
          wait_for_step({answers, i, wanted, wanted.at_least_steps, owner}, shard, results);
        }
      };
      if (const auto* shard = std::get_if<ReadShard>(checked[i].operation)) {
        start(*shard);
      } else if (const auto* rows = std::get_if<ReadRows>(checked[i].operation)) {
        start(*rows);
      } else {
        answers->answers[i] = apply_one(checked[i], results);
      }
    }
  } catch (const std::exception& error) {
    why_broken_ = error.what();
    throw;
  }
  table_.note_applied(identity);
  ++counts_.num_batches;
  counts_.num_changes += identity.num_changes - num_applied_before;
  counts_.num_applied_before += num_applied_before;
}

OperationAnswer VariableStore::apply_one(const CheckedOperation& checked, Results& results) {
  const Operation& operation = *checked.operation;
  if (std::holds_alternative<ReadAwaited>(operation)) return {.value = awaited_workers()};
  if (const auto* report = std::get_if<ReportWorker>(&operation)) {
    ended_workers_.erase(report->worker);
    if (report->has_ended) ended_workers_.insert(report->worker);
    if (report->has_ended) fail_hopeless_reads(results);
    return {};
  }
  StoredShard& shard = *checked.shard;
  if (checked.was_applied_before || std::holds_alternative<CreateShard>(operation)) {
    // Nothing to do: an earlier attempt has applied the operation, or the checker has created the
    // shard.
  } else if (const auto* update = std::get_if<UpdateShard>(&operation)) {
    if (update->sync) {
      accept_sync(checked, *update, results);
    } else {
      shard.update(*checked.rule, checked.slots, *update);
    }
  } else if (const auto* assign = std::get_if<AssignShard>(&operation)) {
    shard.value.assign(assign->op, assign->value);
    ++shard.version;
  } else {
    const ScatterShard& scatter = std::get<ScatterShard>(operation);
    shard.value.scatter(scatter.op, {scatter.values, scatter.rows, shard.spec.shape()},
                        shard.spec.variable);
    ++shard.version;
  }
  OperationAnswer answer = shard.answer();
  answer.was_applied_before = checked.was_applied_before;
  return answer;
}

OperationAnswer VariableStore::counted(OperationAnswer answer) {
  ++counts_.num_reads;
  counts_.num_reads_unchanged += answer.value ? 0 : 1;
  return answer;
}

void VariableStore::wait_for_step(WaitingRead wanted, StoredShard& shard, Results& results) {
  if (const auto why = shard.why_no_step(ended_workers_)) {
    return fail_batch(*wanted.answers, *why, results);
  }
  ++wanted.answers->num_missing;
  shard.waiting.push_back(std::move(wanted));
}

void VariableStore::accept_sync(const CheckedOperation& operation, const UpdateShard& update,
                                Results& results) {
  StoredShard& shard = *operation.shard;
  const SyncAccumulator::Taken taken =
      shard.accumulator.take(in_own_memory(update), shard.num_steps);
  shard.num_ranks = update.sync->num_ranks;
  shard.num_to_aggregate = update.sync->num_to_aggregate;
  counts_.num_stale_dropped += taken == SyncAccumulator::Taken::kStale ? 1 : 0;
  counts_.num_rank_duplicates += taken == SyncAccumulator::Taken::kDuplicate ? 1 : 0;
  while (auto complete = shard.accumulator.take_complete(shard.num_steps, shard.spec.shape())) {
    if (operation.rule) {
      shard.update(*operation.rule, operation.slots, *complete);
    } else {  // kAddOnce
      shard.value.assign(AssignOp::kAdd, complete->gradient);
      ++shard.version;
    }
    ++shard.num_steps;
    ++counts_.num_sync_steps;
  }
  std::erase_if(shard.waiting, [&](WaitingRead& each) TUTTI_REQUIRES(mutex_) {
    if (each.at_least_steps > shard.num_steps) return false;
    each.answers->answers[each.index] =
        counted(std::visit([&](const auto& read) { return shard.read(read); }, each.read));
    count_answer(*each.answers, results);
    return true;
  });
}

/// Fails reads that wait for steps that cannot complete because too few workers are left.
void VariableStore::fail_hopeless_reads(Results& results) {
  for (const auto& [id, shard] : shards_) {
    if (shard->waiting.empty()) continue;
    const auto why = shard->why_no_step(ended_workers_);
    if (!why) continue;
    for (const WaitingRead& each : shard->waiting) fail_batch(*each.answers, *why, results);
    shard->waiting.clear();
  }
}

/// Returns the ranks of the workers whose gradients the waiting reads still need: int64 [n].
Tensor VariableStore::awaited_workers() const {
  std::set<std::int64_t> ranks;
  for (const auto& [id, shard] : shards_) {
    if (shard->waiting.empty()) continue;
    for (const int rank : shard->missing_ranks()) ranks.insert(rank);
  }
  const std::vector<std::int64_t> sorted(ranks.begin(), ranks.end());
  return Tensor::from(Shape{static_cast<std::int64_t>(sorted.size())}, sorted);
}

void VariableStore::owner_left(std::uint64_t owner) {
  // Both vectors are destroyed after the lock is released, because the replies to their batches may
  // be destroyed with them.
  std::vector<WaitingRead> waiting;
  std::vector<Held> dropped;
  const auto take_from = [&](auto& all, auto& taken) {
    std::erase_if(all, [&](auto& each) {
      if (each.owner != owner) return false;
      taken.push_back(std::move(each));
      return true;
    });
  };
  const MutexLock lock(mutex_);
  for (const auto& [id, shard] : shards_) take_from(shard->waiting, waiting);
  take_from(held_, dropped);
  if (const auto clients = clients_of_.extract(owner)) {
    for (const std::uint64_t client : clients.mapped()) table_.end_client(client);
  }
}

void VariableStore::fail_waiting_reads(const Error& error) {
  Results results;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, shard] : shards_) {
      for (const WaitingRead& each : shard->waiting) fail_batch(*each.answers, error, results);
      shard->waiting.clear();
    }
  }
  deliver(results);
}

StoreCounts VariableStore::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

/// Returns a function that finds or creates an update rule. The function is called with the lock
/// held, while a batch is checked.
std::function<std::shared_ptr<const UpdateRule>(const std::string&)> VariableStore::rule_finder() {
  return [this](const std::string& description) TUTTI_REQUIRES(mutex_) {
    constexpr std::size_t kMostRules = 1024;
    if (const auto found = rules_.find(description); found != rules_.end()) return found->second;
    std::shared_ptr<const UpdateRule> rule = make_update_rule(description);
    if (rules_.size() >= kMostRules) rules_.clear();
    rules_.emplace(description, rule);
    return rule;
  };
}

// Orders from the coordinator.

void VariableStore::accept(const StoreOrder& order) {
  if (run_ == 0) run_ = order.run;
  if (order.run != run_) {
    fail(ErrorCode::kAborted,
         "this server belongs to a run whose chief has exited; the server will exit soon");
  }
  const bool begins = order.kind == StoreOrder::Kind::kClose && order.generation > generation_;
  if (begins || order.generation == generation_) return;
  fail(ErrorCode::kAborted, "expected a StoreOrder of generation ", generation_,
       ", got generation ", order.generation, "; the server was restarted");
}

void VariableStore::run_order(const StoreOrder& order, const OperationBatch& batch,
                              std::vector<OperationAnswer>& answers, Results& results) {
  accept(order);
  const bool opens = order.kind == StoreOrder::Kind::kOpen && !is_open_;
  const bool closes = order.kind == StoreOrder::Kind::kClose;
  // Changes sent before this order are refused.
  if (opens || closes) table_ = AppliedTable(order.number);
  switch (order.kind) {
    case StoreOrder::Kind::kOpen:
      if (opens) open(results);
      break;
    case StoreOrder::Kind::kClose:
      generation_ = order.generation;
      is_open_ = false;
      frozen_.clear();
      break;
    case StoreOrder::Kind::kRestore:
      restore(batch);
      break;
    case StoreOrder::Kind::kList: {
      std::vector<ShardSpec> specs;
      for (const auto& [id, shard] : shards_) specs.push_back(shard->spec);
      std::ranges::sort(specs, {}, &ShardSpec::id);
      answers.front().value = encode_specs(specs);
      break;
    }
    case StoreOrder::Kind::kFreeze:
      freeze(order.number);
      break;
    case StoreOrder::Kind::kReadFrozen:
      read_frozen(batch, answers);
      break;
    case StoreOrder::Kind::kRelease:
      frozen_.clear();
      break;
  }
}

/// Applies the held batches in order.
void VariableStore::open(Results& results) {
  is_open_ = true;
  for (Held& each : std::exchange(held_, {})) {
    apply_now(std::move(each.batch), each.owner, std::move(each.done), results);
  }
}

/// Freezes all values, but only once per `number`, because after a broken connection the
/// coordinator may repeat its order, and values may have changed by then.
void VariableStore::freeze(std::uint64_t number) {
  if (number <= frozen_number_) return;
  fail_if_broken();
  frozen_number_ = number;
  frozen_.clear();
  for (const auto& [id, shard] : shards_) frozen_[id] = shard->read(ReadShard{id});
}

void VariableStore::read_frozen(const OperationBatch& batch,
                                std::vector<OperationAnswer>& answers) const {
  for (std::size_t i = 1; i < batch.operations.size(); ++i) {
    const auto* const read = std::get_if<ReadShard>(&batch.operations[i]);
    const auto found = read == nullptr ? frozen_.end() : frozen_.find(read->shard);
    if (found == frozen_.end()) {
      fail(ErrorCode::kAborted, "operation ", i,
           " of a batch with a StoreOrder: expected a read of a frozen shard");
    }
    answers[i] = found->second;
  }
}

/// Sets the shards to the values of the batch. Clients' caches compare versions, so each restored
/// value gets a version that no server has used before.
void VariableStore::restore(const OperationBatch& batch) {
  const std::uint64_t first_version = (generation_ << 32) + 1;
  Checker checker(shards_, rule_finder(), 0, first_version);
  const std::span creations(batch.operations);
  for (const CheckedOperation& each : checker.check_all(creations.subspan(1))) {
    const auto* const create = std::get_if<CreateShard>(each.operation);
    const auto* const value =
        create == nullptr ? nullptr : std::get_if<Tensor>(&create->initial_value);
    if (value == nullptr || value->shape() != create->spec.shape()) {
      fail(ErrorCode::kInvalidArgument, "StoreOrder kRestore: expected the value of each shard");
    }
    StoredShard& shard = *each.shard;
    if (shard.version == first_version) continue;  // this batch created the shard
    shard.value.assign(AssignOp::kAssign, *value);
    shard.version = std::max(shard.version + 1, first_version);
  }
  why_broken_.clear();
  checker.add_shards();
}

void VariableHandler::take(std::shared_ptr<RpcCall> call) {
  OperationBatch batch = decode_batch(call->request());
  const std::uint64_t owner = call->peer().client;
  store_.apply(std::move(batch), owner, [call = std::move(call)](const BatchResult& result) {
    if (result.error) return call->fail(*result.error);
    try {
      call->reply(encode(result.answers));
    } catch (const Error& error) {
      call->fail(error);
    }
  });
}

}  // namespace tutti::internal
