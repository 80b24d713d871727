// A variable of which each replica owns a shard: gathering, writes, and what replicas do with it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/fully_sharded/fully_sharded_variable.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/strategy/fully_sharded/shard_update.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {
namespace {

/// Even shares of `count` elements, cut at multiples of 64 bytes.
std::vector<Shard> cut_evenly(std::int64_t count, std::size_t element_size,
                              std::size_t num_shards) {
  const auto unit = static_cast<std::int64_t>(std::max<std::size_t>(64 / element_size, 1));
  const auto parts = static_cast<std::int64_t>(num_shards);
  const std::int64_t units = (count + unit - 1) / unit;
  std::vector<Shard> shards;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t begin = std::min(units * i / parts * unit, count);
    const std::int64_t end = std::min(units * (i + 1) / parts * unit, count);
    shards.push_back({begin, end - begin});
  }
  return shards;
}

Tensor flat(const Tensor& value) { return value.detached_reshape({value.num_elements()}); }

Tensor elements(const Tensor& value, const Shard& shard) {
  return flat(value).detached_rows(shard.first, shard.count);
}

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

}  // namespace

Shards::Shards(const Shape& shape, DType dtype, std::span<const Device> replica_devices,
               bool keeps_whole, const MakeShard& make)
    : shape_(shape),
      dtype_(dtype),
      ranges_(cut_evenly(shape.num_elements(), size_of(dtype), replica_devices.size())) {
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    const Device device = replica_devices[r];
    shards_.emplace_back(make(ranges_[r], device), device);
    const auto is_here = [&](const auto& kept) { return kept->device == device; };
    if (!keeps_whole || std::ranges::any_of(kept_, is_here)) continue;
    kept_.push_back(std::make_unique<Kept>());
    kept_.back()->device = device;
  }
}

Tensor Shards::gathered(Device device) const {
  const auto whole = std::ranges::find(ranges_, shape_.num_elements(), &Shard::count);
  if (whole != ranges_.end()) {
    const auto owner = static_cast<std::size_t>(whole - ranges_.begin());
    return shards_[owner].read().detached_reshape(shape_).to(device);
  }
  MutableTensor value(shape_, dtype_, device);
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    const Tensor shard = shards_[r].read();
    const auto first = static_cast<std::size_t>(ranges_[r].first) * size_of(dtype_);
    if (shard.num_elements() == 0) continue;
    std::memcpy(value.data() + first, shard.bytes().data(), shard.num_bytes());
  }
  return value.freeze();
}

Tensor Shards::gather(Device device) const {
  const auto kept =
      std::ranges::find_if(kept_, [&](const auto& each) { return each->device == device; });
  if (kept == kept_.end()) return gathered(device);
  MutexLock lock((*kept)->mutex);
  if (!(*kept)->whole.defined()) (*kept)->whole = gathered(device);
  return (*kept)->whole;
}

void Shards::note_write() {
  version_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& kept : kept_) forget(*kept);
}

void Shards::forget(Kept& kept) {
  MutexLock lock(kept.mutex);
  kept.whole = Tensor();
}

void Shards::assign(AssignOp op, const Tensor& value) {
  note_write();
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    // A copy: elements of the whole would keep all of it.
    shards_[r].assign(op, elements(value, ranges_[r]).to(shards_[r].device()).copy());
  }
}

void Shards::scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) {
  VariableComponent whole(gathered(device()), device());
  whole.scatter(op, slices, name);
  assign(AssignOp::kAssign, whole.read());
}

void Shards::update(std::span<Component* const> slots, const UpdateRule& rule,
                    const Gradient& gradient, const UpdateScalars& scalars) {
  std::vector<Shards*> shards;
  for (Component* slot : slots) {
    shards.push_back(dynamic_cast<Shards*>(slot));
    TUTTI_CHECK(shards.back(), "Shards::update: a slot that is cut otherwise than its variable");
  }
  if (!rule.uses_norms()) {
    for (int r = 0; r < num_shards(); ++r) update_shard(r, shards, rule, gradient, scalars);
    return;
  }
  const Tensor weights = gathered(device());
  MutableTensor direction(shape_, dtype_, device());
  for (int r = 0; r < num_shards(); ++r) {
    const auto first = static_cast<std::size_t>(range(r).first) * size_of(dtype_);
    const DirectionRule direct(rule, direction.data() + first);
    update_shard(r, shards, direct, gradient, scalars);
  }
  const UpdateScalars with_norms = scalars_with_norms(scalars, weights, direction.freeze());
  const ApplyRule apply(rule);
  for (int r = 0; r < num_shards(); ++r) {
    update_shard(r, shards, apply, direction.freeze(), with_norms);
  }
}

void Shards::update_shard(int index, std::span<Shards* const> slots, const UpdateRule& rule,
                          const Gradient& gradient, const UpdateScalars& scalars) {
  VariableComponent& own = shards_[static_cast<std::size_t>(index)];
  version_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& kept : kept_) {
    if (kept->device == own.device()) forget(*kept);  // other replicas see to theirs
  }
  std::vector<VariableComponent*> memory;
  for (Shards* slot : slots) {
    slot->note_write();
    memory.push_back(&slot->shards_[static_cast<std::size_t>(index)]);
  }
  VariableComponent::update(own, memory, rule, gradient_of_shard(gradient, shape_, range(index)),
                            scalars);
}

namespace {

std::vector<std::unique_ptr<Component>> one(std::unique_ptr<Component> component) {
  std::vector<std::unique_ptr<Component>> components;
  components.push_back(std::move(component));
  return components;
}

}  // namespace

FullyShardedStorage::FullyShardedStorage(const Tensor& initial_value, VariableOptions options,
                                         const void* owner,
                                         std::shared_ptr<const Placement> placement,
                                         int work_number, ShardUse use)
    : FullyShardedStorage(initial_value.shape(), initial_value.dtype(), std::move(options), owner,
                          std::move(placement), work_number, use,
                          [&](const Shard& shard, Device device) {
                            return elements(initial_value, shard).to(device).copy();
                          }) {}

FullyShardedStorage::FullyShardedStorage(const Shape& shape, DType dtype, VariableOptions options,
                                         const void* owner,
                                         std::shared_ptr<const Placement> placement,
                                         int work_number, ShardUse use,
                                         const Shards::MakeShard& make)
    : MirroredStorage(shape, dtype, std::move(options), owner, placement, work_number,
                      one(std::make_unique<Shards>(shape, dtype, placement->replica_devices,
                                                   use.keeps_whole, make))),
      use_(use) {}

Tensor FullyShardedStorage::read() const {
  const ReplicaContext* const context = replica_of(owner());
  return context ? shards().gather(context->device()) : shards().read();
}

std::vector<Tensor> FullyShardedStorage::local_components() const {
  std::vector<Tensor> values;
  for (int r = 0; r < shards().num_shards(); ++r) {
    if (shards().range(r).count > 0) values.push_back(shards().shard(r).read());
  }
  return values;
}

std::vector<Device> FullyShardedStorage::devices() const {
  std::vector<Device> devices;
  for (const Tensor& shard : local_components()) devices.push_back(shard.device());
  return devices;
}

Variable FullyShardedStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options{.name = slot_name, .trainable = false};
  const ShardUse use{.keeps_whole = false, .sums_shards = use_.sums_shards, .reads_again = false};
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

}  // namespace tutti::internal
