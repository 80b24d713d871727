// Implements exchanges between the positions of a mesh, and values that outlive a step.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_position.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/call_site.h"
#include "core/names.h"
#include "tensor/kernel_table.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::internal {

ShardedValue::~ShardedValue() {
  if (position_) position_->values_.erase(number_);
}

void ShardedValue::materialize(std::byte* to) {
  MutexLock lock(mutex_);
  if (is_materialized_) return;
  Tensor whole = whole_;
  if (!whole.defined()) {
    MeshPosition* const position = MeshPosition::current();
    if (position != position_ || position == nullptr) {
      fail(ErrorCode::kFailedPrecondition,
           "a tensor that is sharded over a mesh was read outside the thread of its mesh position; "
           "expected a read in the step that created it");
    }
    whole = position->local_as({sharding_, local_, spec_}, {});
  }
  const Tensor on_host = whole.to(Device{});
  std::memcpy(to, on_host.bytes().data(), on_host.num_bytes());
  is_materialized_ = true;
}

MeshPosition::MeshPosition(LocalReplicaContext& local, const MeshGrid& grid, MeshGroups& groups,
                           AxisSet batch_axes, AxisSet sequence_axes)
    : local_(local),
      grid_(grid),
      groups_(groups),
      batch_axes_(batch_axes),
      sequence_axes_(sequence_axes),
      number_(local.services().first_replica() + local.local_replica()) {}

MeshPosition::~MeshPosition() {
  // After a failed step, some values were not gathered and may outlive this position.
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
       "', which did not create the variable");
}

ShardedTensor MeshPosition::part_of(const Tensor& value) const {
  const TensorSpec spec{value.shape(), value.dtype()};
  if (const auto found = batch_.find(value.id()); found != batch_.end()) return found->second;
  const std::shared_ptr<LazyValue> lazy = lazy_value(value);
  const auto* const sharded = dynamic_cast<const ShardedValue*>(lazy.get());
  // A tensor with a different shape is a view that was created without an operation; it reads the
  // global value.
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
  // The tensor is on the host, because the global value may be too large for the position's device.
  // The tensor's memory is not touched before the host reads it.
  if (StepTracer::current()) return placeholder(value.spec, Device{}, std::move(lazy));
  return lazy_tensor(value.spec, Device{}, std::move(lazy));
}

// Exchanges.

namespace {

/// Values that one position contributes to an exchange, and values that it receives.
struct Exchange {
  Tensor own = {};
  std::vector<Tensor> received = {};
  std::span<const PositionSum> sums = {};
  std::shared_ptr<MeshSums> started = nullptr;
};

std::vector<Tensor> values_of(const std::vector<Exchange*>& positions) {
  std::vector<Tensor> values;
  for (const Exchange* position : positions) values.push_back(position->own);
  return values;
}

/// Returns the header of an exchange. It differs between positions that pass different arguments.
RendezvousHeader header_of(ExchangeKind kind, int argument, const Tensor& value, AxisSet axes,
                           ReduceOp op = ReduceOp::kSum) {
  const bool is_sum = kind == ExchangeKind::kAllReduce;
  RendezvousHeader header{.kind = is_sum ? RendezvousKind::kAllReduce : RendezvousKind::kExchange,
                          .op = op,
                          .axis = argument,
                          .method = static_cast<int>(kind) * 31 + axes,
                          .where = CallSite::current()};
  header.values.push_back({value.dtype(), value.shape(), false});
  return header;
}

RendezvousHeader header_of(std::span<const PositionSum> sums) {
  RendezvousHeader header{.kind = RendezvousKind::kAllReduce, .where = CallSite::current()};
  std::uint32_t hash = 0;  // unsigned, because it overflows
  for (const PositionSum& sum : sums) {
    header.values.push_back({sum.own.dtype(), sum.own.shape(), false});
    hash = (hash * 31 + sum.axes) * 31 +
           static_cast<std::uint32_t>(sum.parts * static_cast<int>(Shape::kMaxRank) + sum.dim);
    header.axis = sum.root;
  }
  header.method = static_cast<int>(hash);
  return header;
}

std::vector<MeshSum> sums_of(const std::vector<Exchange*>& positions) {
  std::vector<MeshSum> sums;
  for (std::size_t i = 0; i < positions.front()->sums.size(); ++i) {
    const PositionSum& first = positions.front()->sums[i];
    MeshSum& sum = sums.emplace_back(MeshSum{first.axes, first.parts, first.dim});
    for (const Exchange* position : positions) sum.own.push_back(position->sums[i].own);
  }
  return sums;
}

void give(std::vector<std::vector<Tensor>> by_sum, const std::vector<Exchange*>& positions) {
  for (const std::vector<Tensor>& by_position : by_sum) {
    for (std::size_t p = 0; p < positions.size(); ++p) {
      positions[p]->received.push_back(by_position[p]);
    }
  }
}

}  // namespace

std::vector<Tensor> MeshPosition::gathered(
    const Tensor& value, AxisSet axes,
    const std::function<std::vector<std::vector<Tensor>>(const std::vector<Tensor>& own,
                                                         const std::string& call)>& gather) {
  Exchange own{.own = value};
  RendezvousHeader header = header_of(ExchangeKind::kAllGather, 0, value, axes);
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        std::vector<std::vector<Tensor>> groups = gather(values_of(positions), call);
        groups_.count(ExchangeKind::kAllGather, axes, value.num_bytes());
        for (std::size_t p = 0; p < positions.size(); ++p) positions[p]->received = groups[p];
      });
  return std::move(own.received);
}

std::vector<Tensor> MeshPosition::exchange(const Tensor& value, AxisSet axes) {
  return gathered(value, axes, [&](const std::vector<Tensor>& own, const std::string& call) {
    return groups_.gather(axes, own, call);
  });
}

std::vector<Tensor> MeshPosition::exchange_ahead(const Tensor& value, AxisSet axes,
                                                 const GatheredVariable& variable,
                                                 ReadAhead& reads) {
  return gathered(value, axes, [&](const std::vector<Tensor>& own, const std::string&) {
    return groups_.by_group(axes, own, reads.read(variable, value.dtype()));
  });
}

Tensor MeshPosition::received(const Tensor& value, AxisSet axes, ExchangeKind kind,
                              const std::vector<int>& senders) {
  Exchange own{.own = value};
  RendezvousHeader header = header_of(kind, senders.front(), value, axes);
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        give({groups_.receive(axes, senders, values_of(positions), call)}, positions);
        groups_.count(kind, axes, value.num_bytes());
      });
  return own.received.front().to(device());
}

Tensor MeshPosition::all_to_all(const Tensor& value, int from, int to, AxisSet axes) {
  Exchange own{.own = value};
  RendezvousHeader header = header_of(ExchangeKind::kAllToAll, to, value, axes);
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        auto parts = groups_.all_to_all(axes, to, values_of(positions), call);
        groups_.count(ExchangeKind::kAllToAll, axes, value.num_bytes());
        for (std::size_t p = 0; p < positions.size(); ++p) positions[p]->received = parts[p];
      });
  return joined(std::move(own.received), from);
}

std::shared_ptr<MeshSums> MeshPosition::start_sums(std::span<const PositionSum> sums) {
  Exchange own{.sums = sums};
  RendezvousHeader header = header_of(sums);
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        const std::shared_ptr<MeshSums> started = groups_.start_sums(sums_of(positions), call);
        for (const PositionSum& sum : sums) count(sum);
        for (Exchange* position : positions) position->started = started;
      });
  return std::move(own.started);
}

std::vector<Tensor> MeshPosition::join(std::span<const std::shared_ptr<MeshSums>> started) {
  Exchange own;
  exchange_arguments<Exchange>(
      {.kind = RendezvousKind::kFinishGradients, .where = CallSite::current()}, own,
      [&](const std::vector<Exchange*>& positions) {
        for (const auto& sums : started) give(sums->wait(), positions);
      });
  return std::move(own.received);
}

Tensor MeshPosition::summed(const PositionSum& sum) {
  if (grid_.size(sum.axes) == 1) return sum.own;
  Exchange own{.sums = {&sum, 1}};
  RendezvousHeader header = header_of({&sum, 1});
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        give(groups_.start_sums(sums_of(positions), call)->wait(), positions);
        count(sum);
      });
  return std::move(own.received.front());
}

void MeshPosition::count(const PositionSum& sum) {
  const ExchangeKind kind = sum.root >= 0           ? ExchangeKind::kReduce
                            : sum.parts == sum.axes ? ExchangeKind::kReduceScatter
                                                    : ExchangeKind::kAllReduce;
  groups_.count(kind, sum.axes, sum.own.num_bytes());
}

Tensor MeshPosition::combined(ReduceOp op, const Tensor& value, AxisSet axes) {
  if (grid_.size(axes) == 1) return value;
  Exchange own{.own = value};
  RendezvousHeader header = header_of(ExchangeKind::kAllReduce, 0, value, axes, op);
  const std::string call = header.signature();
  exchange_arguments<Exchange>(
      std::move(header), own, [&](const std::vector<Exchange*>& positions) {
        give({groups_.combine(axes, op, values_of(positions), call)}, positions);
        groups_.count(ExchangeKind::kAllReduce, axes, value.num_bytes());
      });
  return std::move(own.received.front());
}

void MeshPosition::require_same_specs(std::span<const Tensor> values) {
  RendezvousHeader header{.kind = RendezvousKind::kExchange, .where = CallSite::current()};
  for (const Tensor& value : values) {
    header.values.push_back({value.dtype(), value.shape(), false});
  }
  int nothing = 0;
  exchange_arguments<int>(std::move(header), nothing, [](const std::vector<int*>&) {});
}

void MeshPosition::require_global(std::string_view who) const {
  require(local_call_.empty(), who, ": got a sharded tensor in the function of ", local_call_,
          "; expected local tensors: the function's inputs, and values computed from them");
}

void MeshPosition::meet(RendezvousKind kind) {
  int nothing = 0;
  exchange_arguments<int>(RendezvousHeader{.kind = kind, .where = CallSite::current()}, nothing,
                          [](const std::vector<int*>&) {});
}

Tensor MeshPosition::cut(const Tensor& value, int dim, AxisSet axes) const {
  return part_along(value, dim, grid_.size(axes), grid_.index(number_, axes));
}

Tensor MeshPosition::joined(std::vector<Tensor> parts, int dim) const {
  const Shape& shape = parts.front().shape();
  const TensorSpec whole{shape.with_dim(dim, shape.dim(dim) * std::ssize(parts)),
                         parts.front().dtype()};
  return run_on_parts(
             {OpId::kConcat, std::move(parts), {whole}, AxisAttributes{dim}, CallSite::current()})
      .front();
}

Tensor MeshPosition::local_as(const ShardedTensor& value, const Sharding& sharding) {
  Tensor local = value.local.to(device());
  Sharding now = value.sharding;
  const int rank = value.spec.shape.rank();
  bool is_cut_first = false;
  // Dimensions are sharded first, because later exchanges then move fewer bytes.
  for (int d = 0; d < rank; ++d) {
    const AxisSet to = sharding[d];
    const auto summed = static_cast<AxisSet>(now.partial & ~sharding.partial);
    if (now[d] == 0 && to != 0 && (to & (summed | now.cut())) == 0) {
      local = cut(local, d, to);
      now[d] = to;
      is_cut_first = true;
    }
  }
  if (const auto axes = static_cast<AxisSet>(now.partial & ~sharding.partial); axes != 0) {
    PositionSum sum{.axes = axes, .own = local};
    for (int d = 0; d < rank && sum.parts == 0; ++d) {
      if (now[d] != 0 || sharding[d] == 0 || (sharding[d] & ~axes) != 0) continue;
      sum.parts = sharding[d];
      sum.dim = d;
      now[d] = sharding[d];
    }
    local = summed(sum);
    now.partial &= static_cast<AxisSet>(~axes);
    if (value.value && !is_cut_first) {  // keeps the sum for later uses of the value
      value.value->local_ = local;
      value.value->sharding_ = now;
    }
  }
  for (int d = 0; d < rank; ++d) {
    const AxisSet axes = now[d];
    if (axes == 0 || axes == sharding[d]) continue;
    int to = 0;
    while (to < rank && (now[to] != 0 || sharding[to] != axes)) ++to;
    if (to < rank && sharding[d] == 0) {
      local = all_to_all(local, d, to, axes);
      now[to] = axes;
    } else {
      local = joined(exchange(local, axes), d);
    }
    now[d] = 0;
  }
  for (int d = 0; d < rank; ++d) {
    if (sharding[d] != now[d]) local = cut(local, d, sharding[d]);
  }
  // Each position adds an equal share of the term. The shares are exact if the number of positions
  // is a power of two. Integers cannot be divided, so only the first position adds them.
  const auto added = static_cast<AxisSet>(sharding.partial & ~value.sharding.partial);
  if (added != 0) {
    const bool is_first = grid_.index(number_, added) == 0;
    const double share = is_floating(local.dtype()) ? 1.0 / grid_.size(added) : is_first ? 1 : 0;
    const OpPartitionerScope none(nullptr);
    const SeparateObservers unobserved;
    const DeviceScope here(device());
    local = multiply(local, share);
  }
  return local;
}

// The step.

void MeshPosition::note_batch(const Batch& batch) {
  for (std::size_t i = 0; i < batch.element().size(); ++i) {
    const Tensor& value = batch[i];
    ShardedTensor part{{}, value, {value.shape(), value.dtype()}};
    for (int d = 0; d < std::min(value.rank(), 2); ++d) {
      const AxisSet axes = d == 0 ? batch_axes_ : sequence_axes_;
      const std::int64_t size = value.shape().dim(d);
      if (axes == 0 || size == 0 || size % grid_.size(axes) != 0) continue;  // not cut
      part.local = cut(part.local, d, axes);
      part.sharding[d] = axes;
    }
    if (part.sharding.is_whole()) continue;
    part.local = part.local.to(device());
    batch_.emplace(value.id(), std::move(part));
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
       "merge_call; call the function directly");
}

std::vector<Gradient> MeshPosition::all_reduce_values(ReduceOp, std::span<const Gradient> values,
                                                      SourceLocation) {
  return {values.begin(), values.end()};
}

ReplicaContext::Gathered MeshPosition::all_gather_value(const Tensor& value, int, SourceLocation) {
  return {value, 0};
}

}  // namespace tutti::internal
