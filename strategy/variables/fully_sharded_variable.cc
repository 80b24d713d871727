// Implements variables that are sharded, with one shard per replica.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/fully_sharded_variable.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor/kernel_table.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tensor/sum_of_squares.h"
#include "tensor/tensor_impl.h"
#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {
namespace {

// Helpers for shard updates: the shard's part of a gradient, and rules that require norms of the
// whole variable.

/// Returns the shard's gradient in dense form. Adds up the values of repeated rows, in order.
Tensor dense_of_shard(const IndexedSlices& slices, const Shard& shard) {
  const Tensor values = slices.values.to(Device{});
  const auto rows = checked_rows(slices.indices.to(Device{}), slices.dense_shape.dim(0),
                                 "FullyShardedStorage::update");
  MutableTensor dense({shard.count}, values.dtype(), Device{});
  visit_floating(values.dtype(), "FullyShardedStorage::update", [&]<class T>() {
    const auto out = dense.span<T>();
    std::ranges::fill(out, T(0));
    if (rows.empty()) return;
    const auto in = values.host_span<T>();
    const std::int64_t width = std::ssize(in) / std::ssize(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t row = rows[i] * width;
      const std::int64_t begin = std::max(row, shard.first);
      const std::int64_t end = std::min(row + width, shard.first + shard.count);
      for (std::int64_t k = begin; k < end; ++k) {
        out[static_cast<std::size_t>(k - shard.first)] +=
            in[i * static_cast<std::size_t>(width) + static_cast<std::size_t>(k - row)];
      }
    }
  });
  return dense.freeze();
}

double norm_of(const Tensor& values) {
  const Tensor on_host = values.to(Device{});
  return std::sqrt(sum_of_squares(on_host.dtype(), on_host.bytes().data(),
                                  static_cast<std::size_t>(on_host.num_elements())));
}

}  // namespace

Gradient gradient_of_shard(const Gradient& gradient, const Shape& whole, const Shard& shard) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_slices()) return dense_of_shard(gradient.slices(), shard);
  const Tensor& dense = gradient.dense();
  if (dense.shape() != whole) return gradient;
  return dense.detached_reshape({dense.num_elements()}).detached_rows(shard.first, shard.count);
}

UpdateScalars scalars_with_norms(const UpdateScalars& scalars, const Tensor& weights,
                                 const Tensor& directions) {
  UpdateScalars with_norms = scalars;
  with_norms.weight_norm = norm_of(weights);
  with_norms.direction_norm = norm_of(directions);
  with_norms.gradient_scale = 1.0;
  return with_norms;
}

namespace {

// Gathering and writing the elements of a sharded variable, which has one shard per replica.

/// Divides `count` elements into shares of nearly equal size, split at multiples of 64 bytes.
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

/// Casts on the value's device, without recording on a tape.
Tensor cast_elements(const Tensor& value, DType dtype) {
  if (value.dtype() == dtype || value.num_elements() == 0) return value;
  OpCall call;
  call.op = OpId::kCast;
  call.attributes = CastAttributes{dtype};
  call.inputs = {value};
  call.outputs = {{value.shape(), dtype}};
  return compute(call).front();
}

}  // namespace

Tensor elements_of_shard(const Tensor& value, const Shard& shard) {
  return value.detached_reshape({value.num_elements()}).detached_rows(shard.first, shard.count);
}

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

/// Gathers this process's shards. Casts them one by one, which keeps the temporary copies small.
void Shards::gather_here(const MutableTensor& to) const {
  auto* place = static_cast<std::byte*>(to.address());
  for (const VariableComponent& each : shards_) {
    const Tensor shard = cast_elements(each.read(), to.dtype());
    copy_bytes(to.device(), place, shard.device(), shard.address(), shard.num_bytes());
    place += shard.num_bytes();
  }
}

/// Gathers on the host, because messages are sent from host memory.
StartedGather Shards::start_gather(DType dtype) const {
  const std::size_t own_count = counts_[static_cast<std::size_t>(team_->worker())];
  Tensor own = cast_elements(shards_.front().read(), dtype);
  if (shards_.size() > 1 || own.device().type != DeviceType::kCpu) {
    const MutableTensor together({static_cast<std::int64_t>(own_count)}, dtype, Device{});
    gather_here(together);
    own = together.freeze();
  }
  const MutableTensor whole(shape_, dtype, Device{});
  CollectiveHandle handle = team_->start_all_gather(
      {own.bytes().data(), own_count, dtype},
      {whole.data(), static_cast<std::size_t>(shape_.num_elements()), dtype}, counts_,
      concat("read ", name_));
  return {*team_, std::move(own), whole, std::move(handle)};
}

Tensor Shards::gathered(Device device, DType dtype) const {
  if (team_) return start_gather(dtype).wait().to(device);
  const auto whole = std::ranges::find(ranges_, shape_.num_elements(), &Shard::count);
  if (whole != ranges_.end()) {
    const auto owner = static_cast<std::size_t>(whole - ranges_.begin());
    return cast_elements(shards_[owner].read(), dtype).detached_reshape(shape_).to(device);
  }
  const MutableTensor value(shape_, dtype, device);
  gather_here(value);
  return value.freeze();
}

Tensor Shards::gather(Device device, DType dtype) const {
  Kept* const kept = find_kept(device);
  // A captured step must gather in each replay.
  if (!kept || StepRecorder::current()) return gathered(device, dtype);
  MutexLock lock(kept->mutex);
  if (const Tensor whole = find_whole(*kept, dtype); whole.defined()) return whole;
  return kept->wholes.emplace_back(gathered(device, dtype));
}

Tensor Shards::find_whole(const Kept& kept, DType dtype) const {
  for (const DType type : {dtype, dtype_}) {
    const auto found = std::ranges::find(kept.wholes, type, &Tensor::dtype);
    if (found != kept.wholes.end()) return cast_elements(*found, dtype);
  }
  return {};
}

Tensor Shards::kept(Device device, DType dtype) const {
  Kept* const kept = find_kept(device);
  if (!kept) return {};
  MutexLock lock(kept->mutex);
  return find_whole(*kept, dtype);
}

void Shards::keep(const Tensor& whole) const {
  for (const auto& kept : kept_) {
    MutexLock lock(kept->mutex);
    if (find_whole(*kept, whole.dtype()).defined()) continue;
    kept->wholes.push_back(whole.to(kept->device));
  }
}

void Shards::note_write() {
  change_version();
  for (const auto& kept : kept_) forget(*kept);
}

void Shards::note_write_of(int index) {
  change_version();
  for (const auto& kept : kept_) {
    if (kept->device == shard(index).device()) forget(*kept);
  }
  // Replays of a captured step also write, but do not run this code.
  if (StepRecorder* const recorder = StepRecorder::current()) {
    recorder->on_replay([this] { note_write(); }, [] {});
  }
}

void Shards::assign_shard(int index, const Tensor& whole) {
  note_write_of(index);
  const Tensor own = elements_of_shard(whole, range(index)).copy();
  shards_[static_cast<std::size_t>(index)].assign(AssignOp::kAssign, own);
}

void Shards::forget(Kept& kept) {
  MutexLock lock(kept.mutex);
  kept.wholes.clear();
}

void Shards::assign(AssignOp op, const Tensor& value) {
  note_write();
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    // The elements are copied, because a view of them would keep the whole value alive.
    shards_[r].assign(op, elements_of_shard(value, ranges_[r]).to(shards_[r].device()).copy());
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
  VariableComponent whole(gathered(device(), dtype_), device());
  whole.scatter(op, slices, name);
  assign(AssignOp::kAssign, whole.read());
}

void Shards::update(std::span<Component* const> slots, const UpdateRule& rule,
                    const Gradient& gradient, const UpdateScalars& scalars) {
  std::vector<Shards*> shards;
  for (Component* slot : slots) {
    shards.push_back(dynamic_cast<Shards*>(slot));
    TUTTI_CHECK(shards.back(), "Shards::update: a slot is sharded differently from its variable");
  }
  if (!rule.uses_norms()) {
    for (int r = 0; r < num_shards(); ++r) update_shard(r, shards, rule, gradient, scalars);
    return;
  }
  if (team_) {
    fail(ErrorCode::kUnimplemented, "Variable '", name_, "'.update (", rule.name(),
         "): expected a call in a replica, because the rule uses norms and there are several "
         "workers; call update() in run()");
  }
  std::vector<Shards*> all = {this};
  all.insert(all.end(), shards.begin(), shards.end());
  std::vector<VariableComponent> wholes;
  for (const Shards* each : all) wholes.emplace_back(each->gathered(device(), dtype_), device());
  std::vector<VariableComponent*> memory;
  for (std::size_t i = 1; i < wholes.size(); ++i) memory.push_back(&wholes[i]);
  VariableComponent::update(wholes.front(), memory, rule, gradient, scalars);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->assign(AssignOp::kAssign, wholes[i].read());
  }
}

void Shards::update_shard(int index, std::span<Shards* const> slots, const UpdateRule& rule,
                          const Gradient& gradient, const UpdateScalars& scalars) {
  VariableComponent& own = shards_[static_cast<std::size_t>(index)];
  note_write_of(index);
  std::vector<VariableComponent*> memory;
  for (Shards* slot : slots) {
    slot->note_write();
    memory.push_back(&slot->shards_[static_cast<std::size_t>(index)]);
  }
  VariableComponent::update(own, memory, rule, gradient_of_shard(gradient, shape_, range(index)),
                            scalars);
}

namespace {

std::vector<Shards*> shards_of_slots(std::span<const Variable> slots) {
  std::vector<Shards*> shards;
  for (const Variable& slot : slots) {
    auto* const storage = dynamic_cast<DistributedStorage*>(&slot.storage());
    auto* const own = storage ? dynamic_cast<Shards*>(&storage->component(0)) : nullptr;
    TUTTI_CHECK(own, "FullyShardedStorage::update: the slot '", slot.name(),
                "' belongs to another variable");
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
      ReplicaShards(shards().ranges(), shards().counts_of_workers(), use.sums_shards),
      use_(std::move(use)) {}

FullyShardedStorage::~FullyShardedStorage() {
  if (use_.reads) use_.reads->forget(shards());
}

Tensor FullyShardedStorage::read_as(DType dtype) const {
  LocalReplicaContext* const context = replica("value");
  if (!context) {
    const Tensor whole = shards().gather(shards().device(), dtype);
    // All devices must keep the value. If a device lacked it, the replicas on that device would
    // wait in a rendezvous that the other replicas skip.
    if (use_.team) shards().keep(whole);
    return whole;
  }
  return use_.team ? read_together(*context, dtype) : shards().gather(context->device(), dtype);
}

std::optional<std::uint64_t> FullyShardedStorage::released_version() const {
  return use_.reads_again ? std::optional(shards().version()) : std::nullopt;
}

Tensor FullyShardedStorage::read_together(LocalReplicaContext& context, DType dtype) const {
  if (const Tensor kept = shards().kept(context.device(), dtype); kept.defined()) return kept;
  Tensor own;
  RendezvousHeader header{.kind = RendezvousKind::kAggregateRead, .variable = this};
  header.values.push_back({dtype, shape(), false});
  context.meet<Tensor>(std::move(header), own, [&](const std::vector<Tensor*>& replicas) {
    // There is no read-ahead for slots.
    const Tensor whole =
        use_.reads ? use_.reads->read(shards(), dtype) : shards().gather(shards().device(), dtype);
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
  // Each replica reads only its own shard, because other replicas may be one call ahead.
  const Tensor weights = context.all_gather(shards().shard(r).read(), 0);
  MutableTensor direction({shards().range(r).count}, dtype(), context.device());
  const DirectionRule direct(rule, direction.data());
  shards().update_shard(r, slots, direct, gradient, scalars);
  const Tensor own = direction.freeze();
  const UpdateScalars with_norms = scalars_with_norms(scalars, weights, context.all_gather(own, 0));
  shards().update_shard(r, slots, ApplyRule(rule), own, with_norms);
}

/// On each replica, updates a copy of the full variable and keeps only the replica's shard, because
/// a GPU kernel computes norms over all elements of an update, in its own order.
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
