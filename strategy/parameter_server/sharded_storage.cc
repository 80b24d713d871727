// Implements ShardedStorage and ShardedComponent: creates shards and slots; splits values, rows and
// gradients by shard.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/sharded_storage.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

std::vector<std::unique_ptr<Component>> one_component(
    const std::shared_ptr<ParameterServers>& servers, std::vector<RemoteShard> shards) {
  std::vector<std::unique_ptr<Component>> components;
  components.push_back(std::make_unique<ShardedComponent>(servers, std::move(shards)));
  return components;
}

std::variant<ValueGenerator, Tensor> values_of(const RemoteShard& shard, bool is_alone,
                                               const std::variant<ValueGenerator, Tensor>& whole) {
  if (is_alone || std::holds_alternative<ValueGenerator>(whole)) return whole;
  return std::get<Tensor>(whole).detached_rows(shard.spec.first_row, shard.spec.num_rows);
}

Tensor on_host(const Tensor& tensor) { return tensor.to(Device{}); }

Tensor tensor_of(const std::vector<std::int64_t>& rows) {
  return Tensor::from(Shape{static_cast<std::int64_t>(rows.size())}, rows);
}

ListedRows rows_in(const ShardSpec& shard, const std::vector<std::int64_t>& rows) {
  return rows_within(shard.first_row, shard.num_rows, rows);
}

/// Returns the values at the positions of `rows`, or `values` itself if `rows` lists all positions.
Tensor picked(const Tensor& values, const ListedRows& rows) {
  if (static_cast<std::int64_t>(rows.positions.size()) == values.shape().dim(0)) return values;
  return gather(values, tensor_of(rows.positions));
}

}  // namespace

void create_shards(ParameterServers& servers, const std::vector<RemoteShard>& shards,
                   const std::variant<ValueGenerator, Tensor>& initial) {
  if (ClosureContext::current() != nullptr) {  // earlier checkpoints would lack the variable
    fail(ErrorCode::kFailedPrecondition, "variable '", shards.front().spec.variable,
         "': created in a closure; create it before ClusterCoordinator::start(), on ",
         "every task");
  }
  const GradientTape::StopRecording stop;
  std::vector<std::vector<Operation>> creations(static_cast<std::size_t>(servers.count()));
  for (const RemoteShard& shard : shards) {
    creations[static_cast<std::size_t>(shard.server)].push_back(
        CreateShard{shard.spec, values_of(shard, shards.size() == 1, initial)});
  }
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  for (int s = 0; s < servers.count(); ++s) {
    auto& own = creations[static_cast<std::size_t>(s)];
    if (!own.empty()) pending.push_back(servers.link(s).read(std::move(own)));
  }
  for (const auto& each : pending) (void)each->wait(servers.deadline());
  servers.note_made(shards);
}

ShardedStorage::ShardedStorage(const Shape& shape, DType dtype, VariableOptions options,
                               const void* owner, std::shared_ptr<const Placement> placement,
                               int work_number, std::shared_ptr<ParameterServers> servers,
                               std::vector<RemoteShard> shards)
    : MirroredStorage(shape, dtype, std::move(options), owner, std::move(placement), work_number,
                      one_component(servers, std::move(shards))),
      servers_(std::move(servers)) {}

/// Collective outside run(): all workers must call it, and one of them changes the values. Inside
/// run(), the replica responsible for the variable changes them, and all replicas meet in
/// updates_done().
void ShardedStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (!replica("assign_replicated")) return remote().assign(op, operand);
  if (servers_->trains_apart() && (op != AssignOp::kAdd || is_floating(dtype()))) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.", op,
         ": an optimizer keeps the state of a step in this variable, and independent workers would "
         "overwrite that state; expected no gradient accumulation and no dynamic loss scaling; "
         "use UpdateMode::kSync");
  }
  for_each_own_component("assign_replicated", [&](int) {
    if (servers_->sums_on_servers()) return remote().add_once(operand);
    remote().assign_by_one(op, operand);
  });
}

void ShardedStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                            const Gradient& gradient, const UpdateScalars& scalars) {
  const auto update_once = [&] { MirroredStorage::update(rule, slots, gradient, scalars); };
  if (replica("update")) return update_once();
  servers_->change_together(update_once, concat("'", name(), "'.update"));
}

void ShardedStorage::restore(const TensorLookup& lookup) {
  if (servers_->may_restore()) return MirroredStorage::restore(lookup);
  (void)checked_restore(lookup, name());
}

Variable ShardedStorage::create_slot(const std::string& slot_name, double initial_value) {
  const std::string unique = servers_->unique_name(slot_name);
  std::vector<RemoteShard> own;
  for (const RemoteShard& shard : shards()) {
    ShardSpec spec = shard.spec;
    spec.variable = unique;
    own.emplace_back(shard.server, std::move(spec));
  }
  ValueGenerator constant;
  constant.a = initial_value;
  constant.dtype = dtype();
  constant.shape = shape();
  servers_->change_together([&] { create_shards(*servers_, own, constant); },
                            concat("'", slot_name, "'"));
  VariableOptions slot_options;
  slot_options.name = slot_name;
  slot_options.trainable = false;
  return Variable(std::make_shared<ShardedStorage>(shape(), dtype(), std::move(slot_options),
                                                   owner(), placement(), work_number(), servers_,
                                                   std::move(own)));
}

ShardedComponent::ShardedComponent(std::shared_ptr<ParameterServers> servers,
                                   std::vector<RemoteShard> shards)
    : servers_(std::move(servers)), cache_(std::make_shared<ReadCache>()) {
  cache_->values.resize(shards.size());
  cache_->versions.resize(shards.size(), 0);
  cache_->shards = std::move(shards);
}

Tensor ShardedComponent::rows_of(const Tensor& whole, int index) const {
  const ShardSpec& spec = shard(index).spec;
  return num_shards() == 1 ? whole : whole.detached_rows(spec.first_row, spec.num_rows);
}

Tensor ShardedComponent::read_rows(const Tensor& rows) const {
  return servers_->read_current([&] { return read_rows_once(rows); });
}

Tensor ShardedComponent::read_rows_once(const Tensor& rows) const {
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  const auto numbers = checked_rows(on_host(rows), shard(0).spec.whole_shape.dim(0),
                                    concat("Variable '", name(), "'.read_rows"));
  const std::uint64_t num_steps = servers_->steps_to_wait_for(cache_);
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  std::vector<int> indices;
  for (int i = 0; i < num_shards(); ++i) {
    const ListedRows own = rows_in(shard(i).spec, numbers);
    if (own.rows.empty()) continue;
    std::vector<Operation> reads;
    reads.push_back(ReadRows{shard(i).id, tensor_of(own.rows), num_steps});
    pending.push_back(servers_->link(shard(i).server).read(std::move(reads)));
    indices.push_back(i);
  }
  std::vector<OperationAnswer> answers;
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    answers.push_back(servers_->wait_for_read(shard(indices[i]).server, *pending[i]).front());
    parts.push_back(*answers.back().value);
  }
  servers_->note_read(cache_, answers);
  if (parts.empty())
    return Tensor::zeros(shard(0).spec.whole_shape.with_dim(0, 0), shard(0).spec.dtype);
  return parts.size() == 1 ? parts.front() : tutti::concat(std::span<const Tensor>(parts), 0);
}

void ShardedComponent::change(int index, Operation operation) {
  servers_->change(shard(index).server, std::move(operation));
}

void ShardedComponent::assign(AssignOp op, const Tensor& value) {
  servers_->change_together([&] { assign_by_one(op, value); }, concat("'", name(), "'.", op));
}

void ShardedComponent::assign_by_one(AssignOp op, const Tensor& value) {
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  const Tensor host = on_host(value);
  for (int i = 0; i < num_shards(); ++i) {
    change(i, AssignShard{shard(i).id, op, rows_of(host, i)});
  }
}

void ShardedComponent::scatter(ScatterOp op, const IndexedSlices& slices,
                               const std::string& variable) {
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  const std::string who = concat("Variable '", variable, "'.", op);
  const Shape& shape = shard(0).spec.whole_shape;
  check_slices(slices, shape, shard(0).spec.dtype, who);
  const auto rows = checked_rows(on_host(slices.indices), shape.dim(0), who);
  const Tensor values = on_host(slices.values);
  const auto scatter_all = [&] {
    for (int i = 0; i < num_shards(); ++i) {
      const ListedRows own = rows_in(shard(i).spec, rows);
      if (own.rows.empty()) continue;
      change(i, ScatterShard{shard(i).id, op, tensor_of(own.rows), picked(values, own)});
    }
  };
  servers_->change_together(scatter_all, concat("'", name(), "'.", op));
}

void ShardedComponent::update(std::span<Component* const> slots, const UpdateRule& rule,
                              const Gradient& gradient, const UpdateScalars& scalars) {
  if (gradient.is_none()) return;
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  const std::string who = concat("Variable '", name(), "'.update (", rule.name(), ")");
  if (rule.uses_norms() && num_shards() > 1) {
    fail(ErrorCode::kUnimplemented, who, ": the rule needs norms of the whole variable, which is ",
         "in ", num_shards(), " shards; expected one shard; try a variable_partitioner that does ",
         "not split this variable, or a rule without norms");
  }
  const ShardSpec& first = shard(0).spec;
  UpdateShard update;
  if (servers_->sums_on_servers()) {
    update.sync = servers_->assign_step(cache_);
    if (!update.sync) return;
  }
  update.rule = servers_->rule_text(rule);
  update.scalars = scalars;
  update.scalars.live = nullptr;
  std::vector<std::int64_t> rows;
  Tensor values;
  if (gradient.is_slices()) {
    check_slices(gradient.slices(), first.whole_shape, first.dtype, who);
    rows = checked_rows(on_host(gradient.slices().indices), first.whole_shape.dim(0), who);
    values = on_host(gradient.slices().values);
  } else {
    values = on_host(gradient.dense());
    if (values.shape() != first.whole_shape || values.dtype() != first.dtype) {
      fail(ErrorCode::kInvalidArgument, who,
           ": the gradient does not match the variable; expected ", first.whole_shape, " of ",
           first.dtype, ", got ", values.shape(), " of ", values.dtype());
    }
  }
  for (int i = 0; i < num_shards(); ++i) {
    UpdateShard own = update;
    own.shard = shard(i).id;
    for (Component* slot : slots) {
      const auto* sharded = dynamic_cast<const ShardedComponent*>(slot);
      TUTTI_CHECK(sharded && sharded->num_shards() == num_shards(), who,
                  ": expected each slot to have as many shards as its variable");
      own.slots.push_back(sharded->shard(i).id);
    }
    if (gradient.is_slices()) {
      const ListedRows found = rows_in(shard(i).spec, rows);
      // A synchronous step counts ranks, including those without rows.
      if (found.rows.empty() && rule.skips_zero_gradient() && !update.sync) continue;
      own.rows = tensor_of(found.rows);
      own.gradient = picked(values, found);
    } else {
      own.gradient = rows_of(values, i);
    }
    change(i, std::move(own));
  }
}

void ShardedComponent::add_once(const Tensor& value) {
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  const std::optional<SyncSpec> sync = servers_->assign_step(cache_);
  if (!sync) return;
  const Tensor host = on_host(value);
  for (int i = 0; i < num_shards(); ++i) {
    UpdateShard update{shard(i).id, {}, kAddOnce};
    update.gradient = rows_of(host, i);
    update.sync = sync;
    change(i, std::move(update));
  }
}

}  // namespace tutti::internal
