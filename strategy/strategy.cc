// What all strategies share: scopes, reductions over replicas, updates of components.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy.h"

#include <algorithm>

#include "tutti/core/call_site.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/strategy/distributed_variable.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

using internal::require_cross_replica;

std::vector<Device> Strategy::worker_devices() const {
  std::vector<Device> devices;
  for (const Device& device : replica_devices()) {
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

std::string_view Strategy::reduction_name() { return cross_device_ops().name(); }

Scope Strategy::scope() { return Scope(*this); }

void Strategy::check_argument_count(std::size_t count) const {
  if (count == replica_devices().size()) return;
  fail(ErrorCode::kInvalidArgument, "Strategy '", name(), "': a PerReplica value of ", count,
       " elements; expected one per replica, ", replica_devices().size());
}

namespace {

void require_destinations(std::span<const Device> destinations, const char* who) {
  if (!destinations.empty()) return;
  fail(ErrorCode::kInvalidArgument, who, ": no destinations; expected at least one device");
}

Tensor dense_of(const Gradient& value) { return value.dense(); }

PerReplica<Tensor> copies(const Tensor& value, std::span<const Device> destinations) {
  std::vector<Tensor> values;
  for (const Device& device : destinations) values.push_back(value.to(device));
  return PerReplica<Tensor>(std::move(values));
}

}  // namespace

std::vector<Tensor> Strategy::values_of_all_replicas(const PerReplica<Tensor>& local,
                                                     std::string_view) {
  return local.values();
}

PerReplica<Gradient> Strategy::of_all_replicas(const PerReplica<Tensor>& value,
                                               std::string_view who) {
  return PerReplica<Tensor>(values_of_all_replicas(value, who)).map([](const Tensor& each) {
    return Gradient(each);
  });
}

PerReplica<Tensor> Strategy::reduce_to(ReduceOp op, const PerReplica<Tensor>& value,
                                       std::span<const Device> destinations,
                                       const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::reduce_to");
  require_destinations(destinations, "Strategy::reduce_to");
  check_argument_count(value.size());
  const PerReplica<Gradient> gradients = of_all_replicas(value, "reduce_to");
  MutexLock lock(ops_mutex_);
  return copies(cross_device_ops().reduce(op, gradients, destinations.front()).dense(),
                destinations);
}

std::vector<PerReplica<Tensor>> Strategy::batch_reduce_to(
    ReduceOp op,
    std::span<const std::pair<PerReplica<Tensor>, std::vector<Device>>> value_destination_pairs,
    const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::batch_reduce_to");
  std::vector<PerReplica<Gradient>> values;
  for (const auto& [value, destinations] : value_destination_pairs) {
    require_destinations(destinations, "Strategy::batch_reduce_to");
    check_argument_count(value.size());
    values.push_back(of_all_replicas(value, "batch_reduce_to"));
  }
  std::vector<PerReplica<Gradient>> reduced;
  {
    MutexLock lock(ops_mutex_);
    reduced = cross_device_ops().batch_all_reduce(op, values);
  }
  std::vector<PerReplica<Tensor>> results;
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    results.push_back(copies(dense_of(reduced[i][0]), value_destination_pairs[i].second));
  }
  return results;
}

PerReplica<Tensor> Strategy::broadcast_to(const Tensor& value,
                                          std::span<const Device> destinations) {
  require_cross_replica(*this, "Strategy::broadcast_to");
  require_destinations(destinations, "Strategy::broadcast_to");
  MutexLock lock(ops_mutex_);
  return cross_device_ops().broadcast(value, destinations);
}

Tensor Strategy::gather(const PerReplica<Tensor>& value, int axis, const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::gather");
  check_argument_count(value.size());
  const PerReplica<Tensor> all(values_of_all_replicas(value, "gather"));
  MutexLock lock(ops_mutex_);
  return cross_device_ops().gather(all, axis, parameter_devices().front());
}

Tensor Strategy::gather(const PerReplica<IndexedSlices>&, int) {
  fail(ErrorCode::kUnimplemented,
       "Strategy::gather: gather does not support IndexedSlices; expected "
       "PerReplica<Tensor>; try IndexedSlices::to_dense() in the replicas");
}

void Strategy::update(const Variable& variable,
                      const std::function<void(Variable&, const Tensor&)>& fn,
                      const PerReplica<Tensor>& argument) {
  require_cross_replica(*this, "Strategy::update");
  if (!variable_created_in_scope(variable)) {
    fail(ErrorCode::kInvalidArgument, "Strategy::update: Variable '", variable.name(),
         "' was not made in the scope of '", name(), "'");
  }
  auto* storage = dynamic_cast<internal::DistributedStorage*>(&variable.storage());
  const int count = storage ? storage->num_components() : 1;
  const int num_replicas = static_cast<int>(replica_devices().size());
  const int size = static_cast<int>(argument.size());
  if (size != count && size != num_replicas) {
    fail(ErrorCode::kInvalidArgument, "Strategy::update: an argument of ", size,
         " elements; expected ", count, " (one per component of '", variable.name(), "') or ",
         num_replicas, " (one per replica)");
  }
  if (!storage) {
    Variable whole = variable;
    fn(whole, argument[0]);
    return;
  }
  for (int c = 0; c < count; ++c) {
    int element = c;  // with fewer components than replicas: that of the first replica that reads
                      // the component
    for (int r = num_replicas - 1; size != count && r >= 0; --r) {
      if (storage->component_of_replica(r) == c) element = r;
    }
    Variable component(
        std::make_shared<internal::ComponentStorage>(variable.shared_storage(), *storage, c));
    const DeviceScope colocated(component.storage().devices().front());
    fn(component, argument[static_cast<std::size_t>(element)]);
  }
}

void Strategy::update(const Variable& variable,
                      const std::function<void(Variable&, const Tensor&)>& fn,
                      const Tensor& argument) {
  update(variable, fn, PerReplica<Tensor>(std::vector<Tensor>(replica_devices().size(), argument)));
}

std::shared_ptr<VariableStorage> Strategy::create_storage_from(
    const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options) {
  const Device device = parameter_devices().front();
  return create_storage(initializer({device, key}).to(device), std::move(options));
}

bool Strategy::variable_created_in_scope(const Variable& variable) const {
  const void* self = this == &default_strategy() ? nullptr : static_cast<const void*>(this);
  return variable.storage().owner() == self;
}

}  // namespace tutti
