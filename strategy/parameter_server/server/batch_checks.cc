// Checks of a batch: shards, types, shapes, rows, slots and rules.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/batch_checks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

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
  /// All that is to be checked of an operation that has no more parts than these.
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
  void check(const TellClock& tell, CheckedOperation&) {
    if (tell.worker < 0)
      refuse_operation("a clock of worker ", tell.worker, "; expected 0 or more");
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
  /// Most batches have one rule.
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
  std::shared_ptr<const UpdateRule> rule_;  // of the last update, with what is asked of it
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

/// What a clock says can be refused when the batch is applied, so nothing else may depend on it.
void check_clocks(const OperationBatch& batch) {
  const bool tells = std::ranges::any_of(batch.operations, [](const Operation& operation) {
    return std::holds_alternative<TellClock>(operation);
  });
  if (!tells) return;
  if (batch.stream.kind != UpdateStream::Kind::kClient || num_changes(batch) > 0) {
    refuse_operation("a clock is told by a client, in a batch without changes");
  }
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
  check_clocks(batch);
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

}  // namespace tutti::internal
