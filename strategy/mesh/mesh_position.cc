// Implements exchanges between the positions of a mesh, and values that outlive a step.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_position.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/call_site.h"
#include "tensor/kernel_table.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::internal {

ShardedValue::~ShardedValue() {
  if (position_) position_->values_.erase(number_);
}

void ShardedValue::materialize(std::byte* to) {
  Tensor whole = whole_;
  if (!whole.defined()) {
    MeshPosition* const position = MeshPosition::current();
    if (position != position_ || position == nullptr) {
      fail(ErrorCode::kFailedPrecondition,
           "a tensor that is sharded over a mesh was read on another thread than that of its "
           "position; expected a read in the step that made it");
    }
    whole = position->local_as({sharding_, local_, spec_}, {});
  }
  const Tensor on_host = whole.to(Device{});
  std::memcpy(to, on_host.bytes().data(), on_host.num_bytes());
}

MeshPosition::MeshPosition(LocalReplicaContext& local, const MeshGrid& grid, MeshGroups& groups,
                           AxisSet batch_axes)
    : local_(local),
      grid_(grid),
      groups_(groups),
      batch_axes_(batch_axes),
      number_(local.services().first_replica() + local.local_replica()) {}

MeshPosition::~MeshPosition() {
  // A step that failed leaves values without their wholes.
  for (const auto& [number, value] : values_) value->position_ = nullptr;
}

MeshPosition* MeshPosition::current() {
  const StrategyMode* const mode = current_mode();
  return mode ? dynamic_cast<MeshPosition*>(mode->replica) : nullptr;
}

MeshPosition* MeshPosition::current(const VariableStorage& variable, std::string_view method) {
  MeshPosition* const position = current();
  if (position == nullptr || &position->strategy() == variable.owner()) return position;
  fail(ErrorCode::kFailedPrecondition, "Variable '", variable.name(), "'.", method,
       ": Mixing different strategies: called in a step of '", position->strategy().name(),
       "', which did not make the variable");
}

ShardedTensor MeshPosition::part_of(const Tensor& value) const {
  const TensorSpec spec{value.shape(), value.dtype()};
  if (const auto found = batch_.find(value.id()); found != batch_.end()) {
    Sharding sharding;
    sharding[0] = batch_axes_;
    return {sharding, found->second, spec};
  }
  const std::shared_ptr<LazyValue> lazy = lazy_value(value);
  const auto* const sharded = dynamic_cast<const ShardedValue*>(lazy.get());
  // A view that was made without an operation reads the whole.
  const bool is_view = sharded && (value.shape() != sharded->spec().shape);
  if (!sharded || is_view || sharded->position_ != this) return {{}, value, spec};
  return {sharded->sharding(), sharded->local(), spec,
          std::static_pointer_cast<ShardedValue>(lazy)};
}

Tensor MeshPosition::tensor_of(const ShardedTensor& value) {
  if (value.sharding.is_whole()) return value.local;
  const std::uint64_t number = num_values_++;
  auto lazy =
      std::make_shared<ShardedValue>(*this, number, value.sharding, value.local, value.spec);
  values_.emplace(number, lazy.get());
  // Its memory is not touched before the host reads it; it is not that of the position's device,
  // which may be smaller than the whole.
  return lazy_tensor(value.spec, Device{}, std::move(lazy));
}

// Exchanges.

namespace {

/// Values of one position in an exchange, and those that it receives.
struct Exchange {
  std::span<const Tensor> own;
  std::span<const AxisSet> axes;                 // of each value
  std::vector<std::vector<Tensor>> groups = {};  // the values of the position's group, by value
  std::vector<Tensor> sums = {};
};

std::vector<Tensor> values_of(const std::vector<Exchange*>& positions, std::size_t number) {
  std::vector<Tensor> values;
  for (const Exchange* position : positions) values.push_back(position->own[number]);
  return values;
}

MeetingHeader header_of(MeetingKind kind, ReduceOp op, const Exchange& exchange) {
  MeetingHeader header{.kind = kind, .op = op, .where = CallSite::current()};
  for (std::size_t i = 0; i < exchange.own.size(); ++i) {
    header.values.push_back({exchange.own[i].dtype(), exchange.own[i].shape(), false});
    header.method = header.method * 31 + exchange.axes[i];
  }
  return header;
}

}  // namespace

std::vector<Tensor> MeshPosition::exchange(const Tensor& value, AxisSet axes) {
  Exchange own{.own = {&value, 1}, .axes = {&axes, 1}};
  MeetingHeader header = header_of(MeetingKind::kAllGather, ReduceOp::kSum, own);
  const std::string call = header.signature();
  meet_with<Exchange>(std::move(header), own, [&](const std::vector<Exchange*>& positions) {
    auto groups = groups_.gather(axes, values_of(positions, 0), call);
    for (std::size_t p = 0; p < positions.size(); ++p) {
      positions[p]->groups.push_back(std::move(groups[p]));
    }
  });
  return std::move(own.groups.front());
}

std::vector<Tensor> MeshPosition::reduced_each(ReduceOp op, std::span<const Tensor> values,
                                               std::span<const AxisSet> axes) {
  if (values.empty()) return {};
  Exchange own{.own = values, .axes = axes};
  MeetingHeader header = header_of(MeetingKind::kAllReduce, op, own);
  const std::string call = header.signature();
  meet_with<Exchange>(std::move(header), own, [&](const std::vector<Exchange*>& positions) {
    for (std::size_t v = 0; v < values.size(); ++v) {
      const auto sums = groups_.reduce(axes[v], op, values_of(positions, v), call);
      for (std::size_t p = 0; p < positions.size(); ++p) positions[p]->sums.push_back(sums[p]);
    }
  });
  return std::move(own.sums);
}

Tensor MeshPosition::reduced(ReduceOp op, const Tensor& value, AxisSet axes) {
  if (grid_.size(axes) == 1) return value;
  return reduced_each(op, {&value, 1}, {&axes, 1}).front();
}

void MeshPosition::meet(MeetingKind kind) {
  int nothing = 0;
  meet_with<int>(MeetingHeader{.kind = kind, .where = CallSite::current()}, nothing,
                 [](const std::vector<int*>&) {});
}

Tensor MeshPosition::cut(const Tensor& value, int dim, AxisSet axes) const {
  const std::int64_t size = value.shape().dim(dim) / grid_.size(axes);
  const std::int64_t first = size * grid_.index(number_, axes);
  if (dim == 0) return value.detached_rows(first, size);
  SliceAttributes attributes;
  attributes.begin[static_cast<std::size_t>(dim)] = first;
  return run_on_parts({OpId::kSlice,
                       {value},
                       {{value.shape().with_dim(dim, size), value.dtype()}},
                       attributes,
                       CallSite::current()})
      .front();
}

Tensor MeshPosition::gathered(const Tensor& value, int dim, AxisSet axes) {
  std::vector<Tensor> values = exchange(value, axes);
  const std::int64_t length = value.shape().dim(dim) * std::ssize(values);
  const TensorSpec spec{value.shape().with_dim(dim, length), value.dtype()};
  return run_on_parts(
             {OpId::kConcat, std::move(values), {spec}, AxisAttributes{dim}, CallSite::current()})
      .front();
}

Tensor MeshPosition::local_as(const ShardedTensor& value, const Sharding& sharding) {
  Tensor local = value.local.to(device());
  const auto summed = static_cast<AxisSet>(value.sharding.partial & ~sharding.partial);
  const int rank = value.spec.shape.rank();
  bool is_cut_first = false;
  // Cuts come first: what is exchanged afterwards is then smaller.
  for (int d = 0; d < rank; ++d) {
    const AxisSet from = value.sharding[d], to = sharding[d];
    const bool is_free = (to & (summed | value.sharding.cut())) == 0;
    if (from == 0 && to != 0 && is_free) {
      local = cut(local, d, to);
      is_cut_first = true;
    }
  }
  local = reduced(ReduceOp::kSum, local, summed);
  if (summed != 0 && value.value && !is_cut_first) {  // later uses find the sum
    value.value->local_ = local;
    value.value->sharding_.partial &= static_cast<AxisSet>(~summed);
  }
  for (int d = 0; d < rank; ++d) {
    if (value.sharding[d] != 0 && value.sharding[d] != sharding[d]) {
      local = gathered(local, d, value.sharding[d]);
    }
  }
  for (int d = 0; d < rank; ++d) {
    const AxisSet from = value.sharding[d], to = sharding[d];
    const bool was_free = from == 0 && (to & (summed | value.sharding.cut())) == 0;
    if (to != 0 && to != from && !was_free) local = cut(local, d, to);
  }
  return local;
}

// The step.

void MeshPosition::note_batch(const Batch& batch) {
  const int parts = grid_.size(batch_axes_);
  for (std::size_t i = 0; i < batch.element().size(); ++i) {
    const Tensor& value = batch[i];
    if (parts == 1 || value.rank() == 0 || value.shape().dim(0) == 0 ||
        value.shape().dim(0) % parts != 0) {
      continue;  // each position computes the whole batch
    }
    batch_.emplace(value.id(), cut(value, 0, batch_axes_).to(device()));
  }
}

void MeshPosition::note_result(double result) { local_.note_result(result); }

void MeshPosition::end_step() {
  while (!values_.empty()) {
    ShardedValue& value = *values_.begin()->second;
    value.whole_ = local_as({value.sharding_, value.local_, value.spec_}, {});
    value.local_ = Tensor();
    value.position_ = nullptr;
    values_.erase(values_.begin());
  }
}

std::shared_ptr<const void> MeshPosition::merge_erased(const void*, const std::type_info&,
                                                       const ErasedMerge&, SourceLocation where) {
  const CallSite site(where);
  fail(ErrorCode::kUnimplemented, "merge_call at ", to_string(where),
       ": a mesh strategy has one replica, which its positions run together; expected code without "
       "merge_call; try calling the function directly");
}

std::vector<Gradient> MeshPosition::all_reduce_values(ReduceOp, std::span<const Gradient> values,
                                                      SourceLocation) {
  return {values.begin(), values.end()};
}

ReplicaContext::Gathered MeshPosition::all_gather_value(const Tensor& value, int, SourceLocation) {
  return {value, 0};
}

}  // namespace tutti::internal
