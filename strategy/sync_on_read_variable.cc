// Reading and writing ON_READ variables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/distributed_variable.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/tensor/step_tracer.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

SyncOnReadStorage::SyncOnReadStorage(const Tensor& initial_value, VariableOptions options,
                                     const void* owner, const std::vector<Device>& replica_devices,
                                     std::shared_ptr<WorkerTeam> team)
    : DistributedStorage(initial_value, std::move(options), owner, replica_devices),
      replica_devices_(replica_devices),
      team_(std::move(team)) {}

Tensor SyncOnReadStorage::read() const {
  if (!replica_of(owner())) return aggregated();
  LocalReplicaContext* context = replica("read");
  if (AggregateOnReadScope::active()) return aggregated_by_all(*context);
  return component(context->local_replica()).read();
}

Tensor SyncOnReadStorage::aggregated() const {
  if (num_replicas() == 1) return component(0).read();
  return aggregate(*this, all_components(), component(0).device());
}

std::vector<Tensor> SyncOnReadStorage::all_components() const {
  if (!team_) return local_components();
  return team_->gather_tensors(local_components(), concat("read ", name()));
}

Tensor SyncOnReadStorage::aggregated_by_all(LocalReplicaContext& context) const {
  if (StepTracer* const tracer = StepTracer::current()) {
    return aggregate_in_trace(*tracer, *this, component(context.local_replica()).read());
  }
  MeetingHeader header{.kind = MeetingKind::kAggregateRead, .variable = this};
  Tensor own;
  context.meet<Tensor>(std::move(header), own, [this](const std::vector<Tensor*>& replicas) {
    const Tensor value = aggregated();
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      *replicas[r] = value.to(replica_devices_[r]);
    }
  });
  return own;
}

Tensor SyncOnReadStorage::share(const Tensor& value, int replica) const {
  const int count = num_replicas();
  if (options().aggregation != VariableAggregation::kSum || count == 1) return value;
  if (dtype() == DType::kBool) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(),
         "': aggregation SUM; expected a number type, got bool");
  }
  const GradientTape::StopRecording stop;
  if (is_floating(dtype())) return divide(value, static_cast<double>(count));
  const Tensor on_host = value.to(Device{});
  MutableTensor part(shape(), dtype(), Device{});
  visit_dtype(dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool> && std::is_integral_v<T>) {
      const auto whole = on_host.host_span<T>();
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const auto n = static_cast<T>(count);
        const T rest = static_cast<T>(whole[i] % n);
        const T one = static_cast<T>(rest < T{0} ? T{0} - T{1} : T{1});
        const bool has_more = (rest < T{0} ? T{0} - rest : rest) > static_cast<T>(replica);
        part.span<T>()[i] = static_cast<T>(whole[i] / n + (has_more ? one : T{0}));
      }
    }
  });
  return part.freeze().to(value.device());
}

void SyncOnReadStorage::assign(AssignOp op, const Tensor& value, ValueOrigin) {
  const Tensor operand = checked_operand(op, value);
  if (LocalReplicaContext* context = replica(concat(op))) {
    component(context->local_replica()).assign(op, operand);
    return;
  }
  const bool is_sum = options().aggregation == VariableAggregation::kSum;
  if (is_sum && op != AssignOp::kAssign) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", op,
         ": not defined outside replicas for an ON_READ variable with aggregation SUM; try "
         "assign()");
  }
  for (int c = 0; c < num_components(); ++c)
    component(c).assign(op, share_of_component(operand, c));
}

void SyncOnReadStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (LocalReplicaContext* context = replica("assign_replicated")) {
    component(context->local_replica()).assign(op, operand);
    return;
  }
  for (int c = 0; c < num_components(); ++c) component(c).assign(op, operand);
}

void SyncOnReadStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  LocalReplicaContext* context = replica(concat(op));
  if (context && num_replicas() > 1) {
    fail(
        ErrorCode::kUnimplemented, "Variable '", name(), "'.", op,
        ": not defined inside a replica for an ON_READ variable; try assign() of a computed value");
  }
  for (int c = 0; c < num_components(); ++c) component(c).scatter(op, slices, name());
}

Variable SyncOnReadStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options{.name = slot_name,
                               .trainable = false,
                               .synchronization = VariableSynchronization::kOnRead,
                               .aggregation = options().aggregation};
  const Tensor initial = Tensor::full(shape(), initial_value, dtype(), replica_devices_.front());
  return Variable(std::make_shared<SyncOnReadStorage>(initial, std::move(slot_options), owner(),
                                                      replica_devices_, team_));
}

void SyncOnReadStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                               const Gradient& gradient, const UpdateScalars& scalars) {
  if (LocalReplicaContext* context = replica("update")) {
    update_component(context->local_replica(), rule, slots, gradient, scalars);
    return;
  }
  for (int c = 0; c < num_components(); ++c) {
    update_component(c, rule, slots, gradient, scalars);
  }
}

std::vector<NamedTensor> SyncOnReadStorage::save() const {
  require_outside_replicas("save");
  std::vector<NamedTensor> tensors;
  const std::vector<Tensor> components = all_components();
  if (components.size() == 1) {
    tensors.push_back({name(), components.front()});
  } else if (options().aggregation != VariableAggregation::kNone) {
    tensors.push_back({name(), aggregate(*this, components, component(0).device())});
  }
  for (std::size_t r = 0; r < components.size(); ++r) {
    tensors.push_back({key_of_replica(static_cast<int>(r)), components[r]});
  }
  return tensors;
}

void SyncOnReadStorage::restore(const TensorLookup& lookup) {
  require_outside_replicas("restore");
  const int count = num_replicas();
  bool same_replicas = !lookup(key_of_replica(count)).defined();
  for (int r = 0; r < count; ++r) {
    same_replicas = same_replicas && lookup(key_of_replica(r)).defined();
  }
  std::vector<Tensor> values;
  for (int c = 0; c < num_components(); ++c) {
    values.push_back(same_replicas ? checked_restore(lookup, key_of_replica(first_replica() + c))
                                   : share_of_component(checked_restore(lookup, name()), c));
  }
  for (int c = 0; c < num_components(); ++c) {
    component(c).assign(AssignOp::kAssign, values[static_cast<std::size_t>(c)]);
  }
}

}  // namespace tutti::internal
