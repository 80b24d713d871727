// Implements ON_WRITE variables.
// SPDX-License-Identifier: Apache-2.0
//
// In a replica, a write is a rendezvous: the leader combines the replicas' values and writes every
// component while the other replicas wait, so no replica reads a half-written variable.
#include "strategy/variables/mirrored_variable.h"

#include <algorithm>

#include "core/hash.h"
#include "strategy/replicas/strategy_mode.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/strategy/variables/placement.h"

namespace tutti {

Placement Placement::mirrored(const std::vector<Device>& replica_devices) {
  Placement placement;
  placement.replica_devices = replica_devices;
  for (const Device& device : replica_devices) {
    auto found = std::ranges::find(placement.devices, device);
    const auto index = found - placement.devices.begin();
    if (found == placement.devices.end()) {
      placement.devices.push_back(device);
      placement.num_sharers.push_back(0);
    }
    placement.component_of_replica.push_back(static_cast<int>(index));
    placement.place_among_sharers.push_back(
        placement.num_sharers[static_cast<std::size_t>(index)]++);
  }
  return placement;
}

Placement Placement::central(const std::vector<Device>& replica_devices, Device device,
                             int first_replica, int num_replicas) {
  const auto num_local = static_cast<int>(replica_devices.size());
  Placement placement;
  placement.devices = {device};
  placement.replica_devices = replica_devices;
  placement.num_sharers = {num_replicas == 0 ? num_local : num_replicas};
  for (int r = 0; r < num_local; ++r) {
    placement.component_of_replica.push_back(0);
    placement.place_among_sharers.push_back(first_replica + r);
  }
  return placement;
}

}  // namespace tutti

namespace tutti::internal {
namespace {

struct Assignment {
  Tensor value;
  ValueOrigin origin;
};

struct Scatter {
  const IndexedSlices* slices;
};

/// Returns the rows of all replicas, concatenated in replica order; MEAN divides them by the number
/// of replicas.
IndexedSlices concatenated(const VariableStorage& variable, std::vector<IndexedSlices> slices) {
  if (variable.options().aggregation == VariableAggregation::kOnlyFirstReplica) {
    return slices.front();
  }
  const bool mean = variable.options().aggregation == VariableAggregation::kMean;
  if (mean && !is_floating(variable.dtype())) {
    fail(ErrorCode::kInvalidArgument, "Variable '", variable.name(),
         "': expected a floating-point dtype for a scatter operation with aggregation MEAN, got ",
         variable.dtype());
  }
  const GradientTape::StopRecording stop;
  return concatenate_slices(mean ? ReduceOp::kMean : ReduceOp::kSum, slices,
                            slices.front().values.device());
}

/// Returns the slices of every replica on every worker.
std::vector<IndexedSlices> slices_of_all(const ReplicaServices& services, const std::string& call,
                                         const std::vector<Scatter*>& replicas) {
  ReplicaValues local;
  for (const Scatter* replica : replicas) local.push_back({*replica->slices});
  std::vector<IndexedSlices> all;
  for (const auto& replica : services.of_all_replicas(std::move(local), call)) {
    all.push_back(replica.at(0).slices());
  }
  return all;
}

/// Combines the values that all replicas of all workers assign; returns the result on
/// `destination`.
Tensor combined_value(const VariableStorage& variable, const ReplicaServices& services,
                      const std::string& call, const std::vector<Assignment*>& replicas,
                      Device destination) {
  ReplicaValues local;  // per replica: its value, and whether it is a plain number
  for (const Assignment* replica : replicas) {
    const bool is_plain = replica->origin == ValueOrigin::kPlain;
    local.push_back({replica->value, Tensor::scalar(is_plain ? 1.0 : 0.0, DType::kUInt8)});
  }
  std::vector<Tensor> values;
  bool all_plain = true;
  for (const auto& replica : services.of_all_replicas(std::move(local), call)) {
    values.push_back(replica.at(0).dense());
    all_plain = all_plain && replica.at(1).dense().item_int() == 1;
  }
  // The mean of copies of one number is exactly that number.
  return all_plain ? values.front() : aggregate(variable, &services, values, destination);
}

bool is_linear(ScatterOp op) {
  return op == ScatterOp::kAdd || op == ScatterOp::kSubtract || op == ScatterOp::kMultiply ||
         op == ScatterOp::kDivide;
}

}  // namespace

MirroredStorage::MirroredStorage(const Tensor& initial_value, VariableOptions options,
                                 const void* owner, std::shared_ptr<const Placement> placement,
                                 int work_number)
    : DistributedStorage(initial_value, std::move(options), owner, placement->devices),
      placement_(std::move(placement)),
      work_number_(work_number) {}

MirroredStorage::MirroredStorage(const Shape& shape, DType dtype, VariableOptions options,
                                 const void* owner, std::shared_ptr<const Placement> placement,
                                 int work_number,
                                 std::vector<std::unique_ptr<Component>> components)
    : DistributedStorage(shape, dtype, std::move(options), owner, std::move(components)),
      placement_(std::move(placement)),
      work_number_(work_number) {}

Tensor MirroredStorage::read() const {
  const ReplicaContext* context = replica_of(owner());
  if (!context) return component(0).read();
  const int replica = static_cast<const LocalReplicaContext*>(context)->local_replica();
  const Tensor value = component(component_of_replica(replica)).read();
  if (options().on_host) return value;
  return value.to(placement_->replica_devices[static_cast<std::size_t>(replica)]);
}

bool MirroredStorage::writes_alone(const LocalReplicaContext* context, std::string_view method,
                                   const std::function<void(int)>& write) {
  if (!context || context->num_exchanging() == 1) {
    for (int c = 0; c < num_components(); ++c) write(c);
    return true;
  }
  if (options().aggregation != VariableAggregation::kNone) return false;
  if (!options().allow_divergent) {
    fail(ErrorCode::kFailedPrecondition, "Variable '", name(), "'.", method,
         ": called inside a replica with aggregation NONE, which would let the copies differ; "
         "expected an aggregation; use VariableOptions::aggregation, or allow_divergent = true");
  }
  // The first of the replicas on a device writes the device's component.
  const int replica = context->local_replica();
  if (placement_->place_among_sharers[static_cast<std::size_t>(replica)] == 0) {
    write(component_of_replica(replica));
  }
  return true;
}

void MirroredStorage::assign(AssignOp op, const Tensor& value, ValueOrigin origin) {
  const std::string method = concat(op);
  const Tensor operand = checked_operand(op, value);
  LocalReplicaContext* context = replica(method);
  if (!context) note_write(method, {operand});
  const auto write = [&](int c) { component(c).assign(op, operand); };
  if (writes_alone(context, method, write)) return;
  if (options().aggregation == VariableAggregation::kSum && origin == ValueOrigin::kPlain) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", method,
         ": in a replica with aggregation SUM, expected a computed tensor, got a plain number, "
         "which each replica would add; use aggregation MEAN or ONLY_FIRST_REPLICA");
  }
  if (StepTracer* const tracer = StepTracer::current()) {
    // Each replica has the same number, so the mean is that number.
    const Tensor combined =
        origin == ValueOrigin::kPlain ? operand : aggregate_in_trace(*tracer, *this, operand);
    return component(component_of_replica(context->local_replica())).assign(op, combined);
  }
  Assignment own{operand, origin};
  RendezvousHeader header{
      .kind = RendezvousKind::kAssign, .method = static_cast<int>(op), .variable = this};
  const std::string call = header.signature();
  context->meet<Assignment>(std::move(header), own, [&](const std::vector<Assignment*>& replicas) {
    const Tensor combined =
        combined_value(*this, context->services(), call, replicas, component(0).device());
    for (int c = 0; c < num_components(); ++c) component(c).assign(op, combined);
  });
}

void MirroredStorage::note_write(std::string_view method,
                                 std::initializer_list<Tensor> operands) const {
  const StrategyMode* const mode = current_mode();
  if (!placement_->check || options().allow_divergent || (mode && mode->merging)) return;
  Hasher hasher;
  hasher.update(method);
  for (const Tensor& operand : operands) hasher.update(operand.to(Device{}).bytes());
  const std::string digest = hasher.hex_digest();
  std::string shown;
  if (operands.size() == 1 && operands.begin()->shape().num_elements() == 1) {
    shown = concat(operands.begin()->to(Device{}).item_double());
  }
  placement_->check->note(ConsistencyCheck::Kind::kWrite, name(), std::as_bytes(std::span(digest)),
                          shown);
}

void MirroredStorage::for_each_own_component(std::string_view method,
                                             const std::function<void(int)>& write) {
  const LocalReplicaContext* context = replica(method);
  if (!context) {
    for (int c = 0; c < num_components(); ++c) write(c);
    return;
  }
  const auto replica = static_cast<std::size_t>(context->local_replica());
  const int c = placement_->component_of_replica[replica];
  const int sharers = placement_->num_sharers[static_cast<std::size_t>(c)];
  if (work_number_ % sharers == placement_->place_among_sharers[replica]) write(c);
}

void MirroredStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (!replica("assign_replicated")) note_write(concat(op), {operand});
  for_each_own_component("assign_replicated", [&](int c) { component(c).assign(op, operand); });
}

void MirroredStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  const std::string method = concat(op);
  LocalReplicaContext* context = replica(method);
  if (!context) note_write(method, {slices.values, slices.indices});
  const auto write = [&](int c) { component(c).scatter(op, slices, name()); };
  if (writes_alone(context, method, write)) return;
  const VariableAggregation aggregation = options().aggregation;
  if (!is_linear(op) && aggregation != VariableAggregation::kOnlyFirstReplica) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.", method,
         ": not supported inside a replica with aggregation ", aggregation,
         "; expected ONLY_FIRST_REPLICA; call it outside run");
  }
  Scatter own{&slices};
  RendezvousHeader header{
      .kind = RendezvousKind::kScatter, .method = static_cast<int>(op), .variable = this};
  const std::string call = header.signature();
  context->meet<Scatter>(std::move(header), own, [&](const std::vector<Scatter*>& replicas) {
    const IndexedSlices all =
        concatenated(*this, slices_of_all(context->services(), call, replicas));
    for (int c = 0; c < num_components(); ++c) component(c).scatter(op, all, name());
  });
}

Variable MirroredStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options{.name = slot_name, .trainable = false};
  const Tensor initial = Tensor::full(shape(), initial_value, dtype(), placement_->devices.front());
  return Variable(std::make_shared<MirroredStorage>(initial, std::move(slot_options), owner(),
                                                    placement_, work_number_));
}

void MirroredStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                             const Gradient& gradient, const UpdateScalars& scalars) {
  for_each_own_component("update",
                         [&](int c) { update_component(c, rule, slots, gradient, scalars); });
}

std::vector<NamedTensor> MirroredStorage::save() const {
  require_outside_replicas("save");
  return {{name(), component(0).read()}};
}

void MirroredStorage::restore(const TensorLookup& lookup) {
  require_outside_replicas("restore");
  const Tensor value = checked_restore(lookup, name());
  note_write(concat(AssignOp::kAssign), {value});
  for (int c = 0; c < num_components(); ++c) component(c).assign(AssignOp::kAssign, value);
}

}  // namespace tutti::internal
