// Writing ON_WRITE variables.
// SPDX-License-Identifier: Apache-2.0
//
// In a replica a write is a meeting: the leader combines the replicas' values and writes every
// component while the others sleep, so that nobody reads a half-written variable.
#include "tutti/strategy/mirrored_variable.h"

#include <algorithm>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/sparse.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {
namespace {

struct Assignment {
  Tensor value;
  ValueOrigin origin;
};

struct Scatter {
  const IndexedSlices* slices;
};

MeetingHeader header_of(MeetingKind kind, int method, const VariableStorage& variable) {
  MeetingHeader header;
  header.kind = kind;
  header.method = method;
  header.variable = &variable;
  return header;
}

/// The rows of all replicas one after the other, in replica order; MEAN divides them by the number
/// of replicas.
IndexedSlices concatenated(const VariableStorage& variable, const std::vector<Scatter*>& replicas) {
  const IndexedSlices& first = *replicas.front()->slices;
  if (variable.options().aggregation == VariableAggregation::kOnlyFirstReplica) return first;
  const bool mean = variable.options().aggregation == VariableAggregation::kMean;
  if (mean && !is_floating(variable.dtype())) {
    fail(ErrorCode::kInvalidArgument, "Variable '", variable.name(),
         "': a scatter operation with aggregation MEAN; expected a floating dtype, got ",
         variable.dtype());
  }
  std::vector<IndexedSlices> slices;
  for (const Scatter* replica : replicas) slices.push_back(*replica->slices);
  const GradientTape::StopRecording stop;
  return concatenate_slices(mean ? ReduceOp::kMean : ReduceOp::kSum, slices, first.values.device());
}

bool is_linear(ScatterOp op) {
  return op == ScatterOp::kAdd || op == ScatterOp::kSubtract || op == ScatterOp::kMultiply ||
         op == ScatterOp::kDivide;
}

}  // namespace

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

Placement Placement::central(const std::vector<Device>& replica_devices, Device device) {
  Placement placement;
  placement.devices = {device};
  placement.replica_devices = replica_devices;
  placement.num_sharers = {static_cast<int>(replica_devices.size())};
  for (int r = 0; r < placement.num_sharers.front(); ++r) {
    placement.component_of_replica.push_back(0);
    placement.place_among_sharers.push_back(r);
  }
  return placement;
}

MirroredStorage::MirroredStorage(const Tensor& initial_value, VariableOptions options,
                                 const void* owner, std::shared_ptr<const Placement> placement,
                                 int work_number)
    : DistributedStorage(initial_value, std::move(options), owner, placement->devices),
      placement_(std::move(placement)),
      work_number_(work_number) {}

Tensor MirroredStorage::read() const {
  const ReplicaContext* context = replica_of(owner());
  if (!context) return component(0).read();
  const int replica = context->replica_id();
  const Tensor value = component(component_of_replica(replica)).read();
  if (options().on_host) return value;
  return value.to(placement_->replica_devices[static_cast<std::size_t>(replica)]);
}

void MirroredStorage::write_divergent(int replica, std::string_view method,
                                      const std::function<void(int)>& write) {
  if (!options().allow_divergent) {
    fail(ErrorCode::kFailedPrecondition, "Variable '", name(), "'.", method,
         ": called inside a replica with aggregation NONE, which would let the copies differ; "
         "expected an aggregation; try VariableOptions::aggregation, or allow_divergent = true");
  }
  // The first of the replicas that share a device writes for it.
  if (placement_->place_among_sharers[static_cast<std::size_t>(replica)] == 0) {
    write(component_of_replica(replica));
  }
}

void MirroredStorage::assign(AssignOp op, const Tensor& value, ValueOrigin origin) {
  const std::string method = concat(op);
  const Tensor operand = checked_operand(op, value);
  LocalReplicaContext* context = replica(method);
  const VariableAggregation aggregation = options().aggregation;
  if (!context || is_alone(*context)) {
    for (int c = 0; c < num_components(); ++c) component(c).assign(op, operand);
    return;
  }
  if (aggregation == VariableAggregation::kNone) {
    write_divergent(context->replica_id(), method,
                    [&](int c) { component(c).assign(op, operand); });
    return;
  }
  if (aggregation == VariableAggregation::kSum && origin == ValueOrigin::kPlain) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", method,
         ": a plain number in a replica with aggregation SUM, which would be summed over replicas; "
         "expected a computed tensor; try aggregation MEAN or ONLY_FIRST_REPLICA");
  }
  Assignment own{operand, origin};
  context->meet<Assignment>(header_of(MeetingKind::kAssign, static_cast<int>(op), *this), own,
                            [&](const std::vector<Assignment*>& replicas) {
                              std::vector<Tensor> values;
                              for (const Assignment* replica : replicas)
                                values.push_back(replica->value);
                              const auto is_plain = [](const Assignment* each) {
                                return each->origin == ValueOrigin::kPlain;
                              };
                              // The mean of V copies of a number is that number, exactly.
                              const Tensor combined =
                                  std::ranges::all_of(replicas, is_plain)
                                      ? values.front()
                                      : aggregate(*this, values, component(0).device());
                              for (int c = 0; c < num_components(); ++c)
                                component(c).assign(op, combined);
                            });
}

void MirroredStorage::for_each_own_component(std::string_view method,
                                             const std::function<void(int)>& write) {
  const LocalReplicaContext* context = replica(method);
  if (!context) {
    for (int c = 0; c < num_components(); ++c) write(c);
    return;
  }
  const auto replica = static_cast<std::size_t>(context->replica_id());
  const int c = placement_->component_of_replica[replica];
  const int sharers = placement_->num_sharers[static_cast<std::size_t>(c)];
  if (work_number_ % sharers == placement_->place_among_sharers[replica]) write(c);
}

void MirroredStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  for_each_own_component("assign_replicated", [&](int c) { component(c).assign(op, operand); });
}

void MirroredStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  const std::string method = concat(op);
  LocalReplicaContext* context = replica(method);
  const VariableAggregation aggregation = options().aggregation;
  if (!context || is_alone(*context)) {
    for (int c = 0; c < num_components(); ++c) component(c).scatter(op, slices, name());
    return;
  }
  if (aggregation == VariableAggregation::kNone) {
    write_divergent(context->replica_id(), method,
                    [&](int c) { component(c).scatter(op, slices, name()); });
    return;
  }
  if (!is_linear(op) && aggregation != VariableAggregation::kOnlyFirstReplica) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.", method,
         ": not defined inside a replica with aggregation ", aggregation,
         "; expected ONLY_FIRST_REPLICA; try it outside run");
  }
  Scatter own{&slices};
  context->meet<Scatter>(header_of(MeetingKind::kScatter, static_cast<int>(op), *this), own,
                         [&](const std::vector<Scatter*>& replicas) {
                           const IndexedSlices all = concatenated(*this, replicas);
                           for (int c = 0; c < num_components(); ++c) {
                             component(c).scatter(op, all, name());
                           }
                         });
}

Variable MirroredStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options;
  slot_options.name = slot_name;
  slot_options.trainable = false;
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
  for (int c = 0; c < num_components(); ++c) component(c).assign(AssignOp::kAssign, value);
}

}  // namespace tutti::internal
