// What all strategies share: reductions over replicas, updates of components, input.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy.h"

#include <algorithm>

#include "core/call_site.h"
#include "core/names.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/variables/distributed_variable.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {

using internal::require_cross_replica;

std::vector<Device> Strategy::worker_devices() const {
  std::vector<Device> devices;
  for (const Device& device : replica_devices()) {
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

Scope Strategy::scope() { return Scope(*this); }

void Strategy::check_argument_count(std::size_t count) const {
  if (count == replica_devices().size()) return;
  fail(ErrorCode::kInvalidArgument, "Strategy '", name(), "': a PerReplica value of ", count,
       " elements; expected one per replica, ", replica_devices().size());
}

void Strategy::note_result(ReplicaContext& context, const Tensor& result) {
  if (!result.defined() || result.num_elements() != 1 || !is_floating(result.dtype())) return;
  if (host_reads_at_once(result)) context.note_result(result.item_double());
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
  internal::require(variable_created_in_scope(variable), "Strategy::update: Variable '",
                    variable.name(), "' was not made in the scope of '", name(), "'");
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

InputPlan Strategy::input_plan(InputCut cut, InputOptions options) {
  const auto devices = replica_devices();
  const auto weights = replica_weights();
  InputPlan plan{.replica_devices = {devices.begin(), devices.end()},
                 .weights = {weights.begin(), weights.end()},
                 .cut = cut,
                 .options = options,
                 .num_replicas_in_sync = num_replicas_in_sync(),
                 .first_replica = first_replica(),
                 .num_workers = num_workers(),
                 .worker = worker()};
  complete_input_plan(plan);
  return plan;
}

DistributedDataset Strategy::distribute_dataset(const Dataset& global, InputOptions options) {
  return make_distributed_dataset(global, input_plan(InputCut::kSplit, options));
}

DistributedDataset Strategy::distribute_datasets_from_function(
    const std::function<Dataset(const InputContext&)>& fn, InputOptions options) {
  const InputContext context{.num_input_pipelines = num_workers(),
                             .input_pipeline_id = worker(),
                             .num_replicas_in_sync = num_replicas_in_sync()};
  return make_distributed_dataset(fn(context), input_plan(InputCut::kWhole, options));
}

namespace {

constexpr const char* kReduce = "Strategy::reduce";

void require_sum_or_mean(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  fail(ErrorCode::kInvalidArgument, kReduce, ": expected SUM or MEAN, got ", op,
       "; try ReplicaContext::all_reduce for other operations");
}

/// numerator / count: true division, integers give float32.
Tensor quotient(const Tensor& numerator, std::int64_t count) {
  const auto divisor = static_cast<double>(count);
  if (is_floating(numerator.dtype())) return divide(numerator, divisor);
  return cast(divide(cast(numerator, DType::kFloat64), divisor), DType::kFloat32);
}

std::int64_t length_of(const Tensor& value, std::span<const int> axes) {
  std::int64_t length = 1;
  for (const int axis : axes) length *= value.shape().dim(axis);
  return length;
}

/// SUM over `axes` of each value (float for bool is not guessed: bool is refused by reduce_sum), on
/// its device.
std::vector<Tensor> sums_over_axes(std::span<const Tensor> values, std::span<const int> axes) {
  std::vector<Tensor> sums;
  for (const Tensor& value : values) {
    for (const int axis : axes) value.shape().normalized_axis(axis, kReduce);
    sums.push_back(reduce_sum(value, {std::vector<int>(axes.begin(), axes.end()), false}));
  }
  return sums;
}

}  // namespace

Tensor Strategy::reduce_values(ReduceOp op, const PerReplica<Tensor>& value) {
  const GradientTape::StopRecording stop;
  const PerReplica<Gradient> gradients = of_all_replicas(value, "reduce");
  const DType dtype = gradients[0].dense().dtype();
  const bool divides = op == ReduceOp::kMean && !is_floating(dtype) && dtype != DType::kBool;
  MutexLock lock(ops_mutex_);
  const Tensor reduced =
      cross_device_ops()
          .reduce(divides ? ReduceOp::kSum : op, gradients, parameter_devices().front())
          .dense();
  return divides ? quotient(reduced, std::ssize(gradients.values())) : reduced;
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis,
                        const SourceLocation& where) {
  if (axis) return reduce(op, value, std::span<const int>(&*axis, 1), where);
  const CallSite site(where);
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  return reduce_values(op, value);
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                        const SourceLocation& where) {
  const CallSite site(where);
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  if (axes.empty()) return reduce(op, value, std::nullopt, where);
  const GradientTape::StopRecording stop;
  const PerReplica<Tensor> sums(sums_over_axes(value.values(), axes));
  const Tensor sum = reduce_values(ReduceOp::kSum, sums);
  if (op == ReduceOp::kSum) return sum;
  std::vector<Tensor> lengths;
  for (const Tensor& each : value) {
    lengths.push_back(Tensor::from<std::int64_t>({}, {length_of(each, axes)}));
  }
  std::int64_t count = 0;
  for (const Tensor& length :
       values_of_all_replicas(PerReplica<Tensor>(std::move(lengths)), "lengths in reduce")) {
    count += length.item_int();
  }
  return quotient(sum, count);
}

Tensor Strategy::reduce(std::string_view op, const PerReplica<Tensor>& value,
                        std::optional<int> axis, const SourceLocation& where) {
  return reduce(parse_reduce_op(op), value, axis, where);
}

Tensor Strategy::reduce(ReduceOp op, const Tensor& value, std::optional<int> axis) {
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  if (op == ReduceOp::kSum && num_replicas_in_sync() > 1) {
    fail(ErrorCode::kInvalidArgument, kReduce, ": SUM of a value that is not distributed, with ",
         num_replicas_in_sync(),
         " replicas; expected a PerReplica; try MEAN, or the result of run()");
  }
  if (!axis) return value;
  const GradientTape::StopRecording stop;
  const std::span<const int> axes(&*axis, 1);
  const Tensor sum = sums_over_axes(std::span(&value, 1), axes).front();
  return op == ReduceOp::kSum ? sum : quotient(sum, length_of(value, axes));
}

}  // namespace tutti
