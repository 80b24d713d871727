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
               const ShardUse& use, std::string name, const MakeShard& make)
    : shape_(shape), dtype_(dtype), name_(std::move(name)), team_(use.team) {
  const std::size_t first = team_ ? static_cast<std::size_t>(team_->first_replica()) : 0;
  const std::size_t total =
      team_ ? static_cast<std::size_t>(team_->num_replicas()) : replica_devices.size();
  const std::vector<Shard> all = cut_evenly(shape.num_elements(), size_of(dtype), total);
  for (int w = 0; team_ && w < team_->num_workers(); ++w) {
    std::size_t count = 0;
    for (int r = team_->first_replica_of(w); r < team_->first_replica_of(w + 1); ++r) {
      count += static_cast<std::size_t>(all[static_cast<std::size_t>(r)].count);
    }
    counts_.push_back(count);
  }
  for (std::size_t r = 0; r < replica_devices.size(); ++r) {
    const Device device = replica_devices[r];
    ranges_.push_back(all[first + r]);
    shards_.emplace_back(make(ranges_[r], device), device);
    if (!use.keeps_whole || find_kept(device)) continue;
    kept_.push_back(std::make_unique<Kept>());
    kept_.back()->device = device;
  }
}

Shards::Kept* Shards::find_kept(Device device) const {
  const auto found =
      std::ranges::find_if(kept_, [&](const auto& each) { return each->device == device; });
  return found == kept_.end() ? nullptr : found->get();
}

void Shards::gather_here(std::byte* to) const {
  for (const VariableComponent& each : shards_) {
    const Tensor shard = each.read();
    if (shard.num_elements() == 0) continue;
    std::memcpy(to, shard.bytes().data(), shard.num_bytes());
    to += shard.num_bytes();
  }
}

void Shards::gather_of_workers(std::byte* to) const {
  const std::size_t own_count = counts_[static_cast<std::size_t>(team_->worker())];
  const std::string call = concat("read ", name_);
  const Elements whole{to, static_cast<std::size_t>(shape_.num_elements()), dtype_};
  if (shards_.size() == 1) {
    const Tensor own = shards_.front().read();
    return team_->all_gather({own.bytes().data(), own_count, dtype_}, whole, counts_, call);
  }
  MutableTensor own({static_cast<std::int64_t>(own_count)}, dtype_, Device{});
  gather_here(own.data());
  team_->all_gather({own.data(), own_count, dtype_}, whole, counts_, call);
}

Tensor Shards::gathered(Device device) const {
  const auto whole = std::ranges::find(ranges_, shape_.num_elements(), &Shard::count);
  if (!team_ && whole != ranges_.end()) {
    const auto owner = static_cast<std::size_t>(whole - ranges_.begin());
    return shards_[owner].read().detached_reshape(shape_).to(device);
  }
  MutableTensor value(shape_, dtype_, device);
  team_ ? gather_of_workers(value.data()) : gather_here(value.data());
  return value.freeze();
}

Tensor Shards::gather(Device device) const {
  Kept* const kept = find_kept(device);
  if (!kept) return gathered(device);
  MutexLock lock(kept->mutex);
  if (!kept->whole.defined()) kept->whole = gathered(device);
  return kept->whole;
}

Tensor Shards::kept(Device device) const {
  Kept* const kept = find_kept(device);
  if (!kept) return {};
  MutexLock lock(kept->mutex);
  return kept->whole;
}

void Shards::keep(const Tensor& whole) const {
  for (const auto& kept : kept_) {
    MutexLock lock(kept->mutex);
    kept->whole = whole.to(kept->device);
  }
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

void Shards::assign_own(const Tensor& elements) {
  note_write();
  const std::int64_t first = ranges_.front().first;
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    const Shard& range = ranges_[r];
    const Tensor own = elements.detached_rows(range.first - first, range.count);
    const bool is_all = range.count == elements.num_elements();
    shards_[r].assign(AssignOp::kAssign,
                      is_all ? own.to(shards_[r].device()) : own.to(shards_[r].device()).copy());
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
  if (team_) {
    fail(ErrorCode::kUnimplemented, "Variable '", name_, "'.update (", rule.name(),
         "): a rule with norms, outside of replicas, with several workers; try it in run");
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

FullyShardedStorage::FullyShardedStorage(const Tensor& initial_value,
                                         const VariableOptions& options, const void* owner,
                                         std::shared_ptr<const Placement> placement,
                                         int work_number, ShardUse use)
    : FullyShardedStorage(initial_value.shape(), initial_value.dtype(), options, owner,
                          std::move(placement), work_number, std::move(use),
                          [&](const Shard& shard, Device device) {
                            return elements(initial_value, shard).to(device).copy();
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

Tensor FullyShardedStorage::read() const {
  LocalReplicaContext* const context = replica("value");
  if (!context) return shards().read();
  return use_.team ? read_together(*context) : shards().gather(context->device());
}

Tensor FullyShardedStorage::read_together(LocalReplicaContext& context) const {
  if (const Tensor kept = shards().kept(context.device()); kept.defined()) return kept;
  Tensor own;
  MeetingHeader header{.kind = MeetingKind::kAggregateRead, .variable = this};
  context.meet<Tensor>(std::move(header), own, [&](const std::vector<Tensor*>& replicas) {
    const Tensor whole = shards().read();
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
