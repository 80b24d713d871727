// A variable of which each replica owns a shard: what replicas do with it.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/fully_sharded_variable.h"

#include "strategy/variables/read_ahead.h"
#include "strategy/variables/shard_update.h"

namespace tutti::internal {
namespace {

std::vector<Shards*> shards_of_slots(std::span<const Variable> slots) {
  std::vector<Shards*> shards;
  for (const Variable& slot : slots) {
    auto* const storage = dynamic_cast<DistributedStorage*>(&slot.storage());
    auto* const own = storage ? dynamic_cast<Shards*>(&storage->component(0)) : nullptr;
    TUTTI_CHECK(own, "FullyShardedStorage::update: the slot '", slot.name(),
                "' was made by another variable");
    shards.push_back(own);
  }
  return shards;
}

std::vector<std::unique_ptr<Component>> one(std::unique_ptr<Component> component) {
  std::vector<std::unique_ptr<Component>> components;
  components.push_back(std::move(component));
  return components;
}

}  // namespace

FullyShardedStorage::FullyShardedStorage(const Tensor& initial_value,
                                         const VariableOptions& options, const void* owner,
                                         std::shared_ptr<const Placement> placement,
                                         int work_number, ShardUse use)
    : FullyShardedStorage(initial_value.shape(), initial_value.dtype(), options, owner,
                          std::move(placement), work_number, std::move(use),
                          [&](const Shard& shard, Device device) {
                            return elements_of_shard(initial_value, shard).to(device).copy();
                          }) {}

FullyShardedStorage::FullyShardedStorage(const Shape& shape, DType dtype,
                                         const VariableOptions& options, const void* owner,
                                         std::shared_ptr<const Placement> placement,
                                         int work_number, ShardUse use,
                                         const Shards::MakeShard& make)
    : MirroredStorage(shape, dtype, options, owner, placement, work_number,
                      one(std::make_unique<Shards>(shape, dtype, placement->replica_devices, use,
                                                   options.name, make))),
      use_(std::move(use)) {}

FullyShardedStorage::~FullyShardedStorage() {
  if (use_.reads) use_.reads->forget(shards());
}

Tensor FullyShardedStorage::read_as(DType dtype) const {
  LocalReplicaContext* const context = replica("value");
  if (!context) return shards().gather(shards().device(), dtype);
  return use_.team ? read_together(*context, dtype) : shards().gather(context->device(), dtype);
}

Tensor FullyShardedStorage::read_together(LocalReplicaContext& context, DType dtype) const {
  if (const Tensor kept = shards().kept(context.device(), dtype); kept.defined()) return kept;
  Tensor own;
  MeetingHeader header{.kind = MeetingKind::kAggregateRead, .variable = this};
  header.values.push_back({dtype, shape(), false});
  context.meet<Tensor>(std::move(header), own, [&](const std::vector<Tensor*>& replicas) {
    const Tensor whole = use_.reads->read(shards(), dtype);
    shards().keep(whole);
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      *replicas[r] = whole.to(context.services().replica_devices[r]);
    }
  });
  return own;
}

void FullyShardedStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  const LocalReplicaContext* const context = replica("assign_replicated");
  if (!context) note_write(concat(op), {operand});
  const bool is_ours =
      !context || work_number() % shards().num_shards() == context->local_replica();
  if (is_ours) shards().assign(op, operand);
}

std::vector<Tensor> FullyShardedStorage::local_components() const {
  std::vector<Tensor> values;
  for (int r = 0; r < shards().num_shards(); ++r) {
    if (shards().range(r).count > 0) values.push_back(shards().shard(r).read());
  }
  return values;
}

std::optional<TensorPart> FullyShardedStorage::save_part() const {
  require_outside_replicas("save");
  TensorPart part{name(), shape(), dtype(), shards().range(0).first};
  for (int r = 0; r < shards().num_shards(); ++r) part.values.push_back(shards().shard(r).read());
  part.has_others = use_.team != nullptr;
  return part;
}

std::vector<Device> FullyShardedStorage::devices() const {
  std::vector<Device> devices;
  for (const Tensor& shard : local_components()) devices.push_back(shard.device());
  return devices;
}

Variable FullyShardedStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options{.name = slot_name, .trainable = false};
  const ShardUse use{.sums_shards = use_.sums_shards, .team = use_.team};
  const auto filled = [&](const Shard& shard, Device device) {
    return Tensor::full({shard.count}, initial_value, dtype(), device);
  };
  return Variable(std::make_shared<FullyShardedStorage>(
      shape(), dtype(), std::move(slot_options), owner(), placement(), work_number(), use, filled));
}

void FullyShardedStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                                 const Gradient& gradient, const UpdateScalars& scalars) {
  LocalReplicaContext* const context = replica("update");
  if (!context) return MirroredStorage::update(rule, slots, gradient, scalars);
  if (gradient.is_none()) return;
  const std::vector<Shards*> own_slots = shards_of_slots(slots);
  if (rule.uses_norms()) return update_with_norms(*context, own_slots, rule, gradient, scalars);
  shards().update_shard(context->local_replica(), own_slots, rule, gradient, scalars);
}

void FullyShardedStorage::update_with_norms(LocalReplicaContext& context,
                                            std::span<Shards* const> slots, const UpdateRule& rule,
                                            const Gradient& gradient,
                                            const UpdateScalars& scalars) {
  if (context.device().type != DeviceType::kCpu) {
    return update_of_whole(context, slots, rule, gradient, scalars);
  }
  const int r = context.local_replica();
  // Each replica reads what it owns: others may be a call ahead.
  const Tensor weights = context.all_gather(shards().shard(r).read(), 0);
  MutableTensor direction({shards().range(r).count}, dtype(), context.device());
  const DirectionRule direct(rule, direction.data());
  shards().update_shard(r, slots, direct, gradient, scalars);
  const Tensor own = direction.freeze();
  const UpdateScalars with_norms = scalars_with_norms(scalars, weights, context.all_gather(own, 0));
  shards().update_shard(r, slots, ApplyRule(rule), own, with_norms);
}

/// Kernels of GPUs add norms in an order of their own, of all elements of an update: so each
/// replica updates a copy of the whole, and keeps its shard.
void FullyShardedStorage::update_of_whole(LocalReplicaContext& context,
                                          std::span<Shards* const> slots, const UpdateRule& rule,
                                          const Gradient& gradient, const UpdateScalars& scalars) {
  const int r = context.local_replica();
  const auto whole_of = [&](const Tensor& own) { return context.all_gather(own, 0); };
  std::vector<Shards*> all = {&shards()};
  all.insert(all.end(), slots.begin(), slots.end());
  std::vector<VariableComponent> wholes;
  for (const Shards* each : all) {
    wholes.emplace_back(whole_of(each->shard(r).read()), context.device());
  }
  std::vector<VariableComponent*> memory;
  for (std::size_t i = 1; i < wholes.size(); ++i) memory.push_back(&wholes[i]);
  const Gradient own = gradient_of_shard(gradient, shape(), shards().range(r));
  VariableComponent::update(wholes.front(), memory, rule,
                            whole_of(own.dense().to(context.device())), scalars);
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->assign_shard(r, wholes[i].read());
}

}  // namespace tutti::internal
