// Implements components of distributed variables and the aggregation of values.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/distributed_variable.h"

#include <algorithm>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::internal {
namespace {

bool all_equal(std::span<const Tensor> values) {
  const Tensor first = values.front().to(Device{});
  const auto equals_first = [&](const Tensor& value) {
    return std::ranges::equal(value.to(Device{}).bytes(), first.bytes());
  };
  return std::ranges::all_of(values, equals_first);
}

VariableOptions component_options(const DistributedStorage& storage, int index) {
  VariableOptions options = storage.options();
  options.name = storage.component_name(index);
  return options;
}

}  // namespace

DistributedStorage::DistributedStorage(const Tensor& initial_value, VariableOptions options,
                                       const void* owner,
                                       const std::vector<Device>& component_devices)
    : VariableStorage(initial_value.shape(), initial_value.dtype(), std::move(options), owner) {
  components_.reserve(component_devices.size());
  for (const Device& device : component_devices) {
    components_.push_back(std::make_unique<LocalComponent>(initial_value, device));
  }
}

DistributedStorage::DistributedStorage(const Shape& shape, DType dtype, VariableOptions options,
                                       const void* owner,
                                       std::vector<std::unique_ptr<Component>> components)
    : VariableStorage(shape, dtype, std::move(options), owner),
      components_(std::move(components)) {}

std::string DistributedStorage::component_name(int index) const {
  return index == 0 ? name() : concat(name(), "/replica_", index);
}

std::vector<Tensor> DistributedStorage::local_components() const {
  std::vector<Tensor> values;
  for (const auto& each : components_) values.push_back(each->read());
  return values;
}

std::vector<Device> DistributedStorage::devices() const {
  std::vector<Device> devices;
  for (const auto& each : components_) devices.push_back(each->device());
  return devices;
}

void DistributedStorage::require_outside_replicas(std::string_view method) const {
  if (!replica(method)) return;
  fail(ErrorCode::kFailedPrecondition, "Variable '", name(), "'.", method,
       ": called inside a replica; expected a call outside run()");
}

void DistributedStorage::update_component(int index, const UpdateRule& rule,
                                          std::span<const Variable> slots, const Gradient& gradient,
                                          const UpdateScalars& scalars) {
  std::vector<Component*> slot_components;
  for (const Variable& slot : slots) {
    auto* storage = dynamic_cast<DistributedStorage*>(&slot.storage());
    if (!storage || storage->shape() != shape() || storage->dtype() != dtype() ||
        storage->num_components() != num_components()) {
      fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.update (", rule.name(),
           "): the slot '", slot.name(), "' was not created for this variable; call create_slot()");
    }
    slot_components.push_back(&storage->component(index));
  }
  try {
    component(index).update(slot_components, rule, gradient, scalars);
  } catch (const Error& error) {
    throw error.with_context(concat("Variable '", name(), "'"));
  }
}

ComponentStorage::ComponentStorage(std::shared_ptr<VariableStorage> whole,
                                   DistributedStorage& storage, int index)
    : VariableStorage(storage.shape(), storage.dtype(), component_options(storage, index),
                      storage.owner()),
      whole_(std::move(whole)),
      storage_(storage),
      index_(index) {}

void ComponentStorage::assign(AssignOp op, const Tensor& value, ValueOrigin) {
  assign_replicated(op, value);
}

void ComponentStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_value(value, concat(op).c_str());
  if (index_ == 0) storage_.note_write(concat(op), {operand});
  component().assign(op, operand);
}

void ComponentStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  if (index_ == 0) storage_.note_write(concat(op), {slices.values, slices.indices});
  component().scatter(op, slices, name());
}

Variable ComponentStorage::create_slot(const std::string&, double) {
  fail(ErrorCode::kFailedPrecondition, "Variable '", name(),
       "'.create_slot: this is one component of "
       "a variable; call create_slot() on the whole variable");
}

void ComponentStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                              const Gradient& gradient, const UpdateScalars& scalars) {
  std::vector<Component*> slot_components;
  for (const Variable& slot : slots) {
    auto* storage = dynamic_cast<ComponentStorage*>(&slot.storage());
    internal::require(storage, "Variable '", name(), "'.update (", rule.name(), "): the slot '",
                      slot.name(),
                      "' is not a replica's variable; call update() on the distributed variable");
    slot_components.push_back(&storage->component());
  }
  component().update(slot_components, rule, gradient, scalars);
}

std::vector<NamedTensor> ComponentStorage::save() const { return {{name(), read()}}; }

void ComponentStorage::restore(const TensorLookup& lookup) {
  component().assign(AssignOp::kAssign, checked_restore(lookup, name()));
}

namespace {

bool are_where_it_works(const ReplicaServices& services, std::span<const Tensor> values) {
  if (values.size() != static_cast<std::size_t>(services.num_replicas())) return false;
  const auto is_cpu = [](const Device& device) { return device.type == DeviceType::kCpu; };
  return (std::ranges::all_of(services.replica_devices, is_cpu) &&
          std::ranges::all_of(values, is_cpu, &Tensor::device)) ||
         std::ranges::equal(values, services.replica_devices, {}, &Tensor::device);
}

[[noreturn]] void fail_no_aggregation(const VariableStorage& variable) {
  fail(ErrorCode::kInvalidArgument, "Variable '", variable.name(),
       "': with one value per replica and aggregation NONE, the variable has no single value; "
       "expected SUM, MEAN or ONLY_FIRST_REPLICA; use VariableOptions::aggregation");
}

}  // namespace

Tensor aggregate_in_trace(StepTracer& tracer, const VariableStorage& variable,
                          const Tensor& value) {
  const std::span<const Tensor> own(&value, 1);
  switch (variable.options().aggregation) {
    case VariableAggregation::kOnlyFirstReplica: {
      const Shape& shape = value.shape();
      const Tensor rows =
          tracer.all_gather(value.detached_reshape(shape.with_front(1)), 0, SourceLocation());
      return rows.detached_rows(0, 1).detached_reshape(shape);
    }
    case VariableAggregation::kSum:
      return tracer.all_reduce(ReduceOp::kSum, own, SourceLocation()).front();
    case VariableAggregation::kMean:
      return tracer.all_reduce(ReduceOp::kMean, own, SourceLocation()).front();
    case VariableAggregation::kNone:
      break;
  }
  fail_no_aggregation(variable);
}

Tensor reduce_values(const ReplicaServices* services, ReduceOp op, std::span<const Tensor> values,
                     Device destination) {
  const GradientTape::StopRecording stop;
  if (services && are_where_it_works(*services, values)) {
    const PerReplica<Gradient> given(std::vector<Gradient>(values.begin(), values.end()));
    MutexLock lock(services->ops_mutex);
    return services->ops.reduce(op, given, destination).dense();
  }
  std::vector<Gradient> near;
  for (const Tensor& value : values) near.push_back(value.to(destination));
  return Canonical().reduce(op, PerReplica<Gradient>(std::move(near)), destination).dense();
}

Tensor aggregate(const VariableStorage& variable, const ReplicaServices* services,
                 std::span<const Tensor> values, Device destination) {
  switch (variable.options().aggregation) {
    case VariableAggregation::kOnlyFirstReplica:
      return values.front().to(destination);
    case VariableAggregation::kSum:
      return reduce_values(services, ReduceOp::kSum, values, destination);
    case VariableAggregation::kMean:
      if (is_floating(variable.dtype())) {
        return reduce_values(services, ReduceOp::kMean, values, destination);
      }
      if (all_equal(values)) return values.front().to(destination);
      fail(ErrorCode::kInvalidArgument, "Variable '", variable.name(),
           "': aggregation MEAN: expected a floating-point dtype or equal values, got ",
           variable.dtype(),
           " values that differ between replicas; try a float32 variable or a write outside run");
    case VariableAggregation::kNone:
      break;
  }
  fail_no_aggregation(variable);
}

void LocalComponent::update(std::span<Component* const> slots, const UpdateRule& rule,
                            const Gradient& gradient, const UpdateScalars& scalars) {
  std::vector<VariableComponent*> memory;
  for (Component* slot : slots) {
    auto* local = dynamic_cast<LocalComponent*>(slot);
    TUTTI_CHECK(local, "LocalComponent::update: expected every slot on the device of its variable");
    memory.push_back(&local->component_);
  }
  VariableComponent::update(component_, memory, rule, gradient, scalars);
}

}  // namespace tutti::internal
