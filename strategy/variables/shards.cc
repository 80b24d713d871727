// The elements of a variable in shards, one per replica: gathering, and writes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/shards.h"

#include <algorithm>

#include "strategy/variables/shard_update.h"
#include "tensor/kernel_table.h"
#include "tensor/step_recorder.h"
#include "tensor/tensor_impl.h"

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

/// Where the value is. No tape sees it.
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

/// Shards are cast one by one: what moves, and what is there at once besides the result, is little.
void Shards::gather_here(const MutableTensor& to) const {
  auto* place = static_cast<std::byte*>(to.address());
  for (const VariableComponent& each : shards_) {
    const Tensor shard = cast_elements(each.read(), to.dtype());
    copy_bytes(to.device(), place, shard.device(), shard.address(), shard.num_bytes());
    place += shard.num_bytes();
  }
}

/// On the host, where messages are made.
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

Tensor StartedGather::wait() {
  const StragglerWatch::Waiting waiting(team.stragglers());
  handle.wait();
  return whole.freeze();
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
  // A captured step gathers in each replay.
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
  version_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& kept : kept_) forget(*kept);
}

void Shards::note_write_of(int index) {
  version_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& kept : kept_) {
    if (kept->device == shard(index).device()) forget(*kept);
  }
  // Replays of a captured step write, too, and no code of ours runs then.
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
    // A copy: elements of the whole would keep all of it.
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

}  // namespace tutti::internal
