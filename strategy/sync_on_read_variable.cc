// Reading and writing ON_READ variables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/sync_on_read_variable.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

SyncOnReadStorage::SyncOnReadStorage(const Tensor& initial_value, VariableOptions options,
                                     const void* owner, const std::vector<Device>& replica_devices)
    : DistributedStorage(initial_value, std::move(options), owner, replica_devices),
      replica_devices_(replica_devices) {}

Tensor SyncOnReadStorage::read() const {
  if (!replica_of(owner())) return aggregated();
  LocalReplicaContext* context = replica("read");
  if (AggregateOnReadScope::active()) return aggregated_by_all(*context);
  return component(context->replica_id()).read();
}

Tensor SyncOnReadStorage::aggregated() const {
  if (num_components() == 1) return component(0).read();
  return aggregate(*this, local_components(), component(0).device());
}

Tensor SyncOnReadStorage::aggregated_by_all(LocalReplicaContext& context) const {
  MeetingHeader header;
  header.kind = MeetingKind::kAggregateRead;
  header.variable = this;
  Tensor own;
  context.meet<Tensor>(std::move(header), own, [this](const std::vector<Tensor*>& replicas) {
    const Tensor value = aggregated();
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      *replicas[r] = value.to(replica_devices_[r]);
    }
  });
  return own;
}

Tensor SyncOnReadStorage::share(const Tensor& value, int index) const {
  const int count = num_components();
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
        const bool has_more = (rest < T{0} ? T{0} - rest : rest) > static_cast<T>(index);
        part.span<T>()[i] = static_cast<T>(whole[i] / n + (has_more ? one : T{0}));
      }
    }
  });
  return part.freeze().to(value.device());
}

void SyncOnReadStorage::assign(AssignOp op, const Tensor& value, ValueOrigin) {
  const Tensor operand = checked_operand(op, value);
  if (LocalReplicaContext* context = replica(concat(op))) {
    component(context->replica_id()).assign(op, operand);
    return;
  }
  const bool is_sum = options().aggregation == VariableAggregation::kSum;
  if (is_sum && op != AssignOp::kAssign) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", op,
         ": not defined outside replicas for an ON_READ variable with aggregation SUM; try "
         "assign()");
  }
  for (int c = 0; c < num_components(); ++c) component(c).assign(op, share(operand, c));
}

void SyncOnReadStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (LocalReplicaContext* context = replica("assign_replicated")) {
    component(context->replica_id()).assign(op, operand);
    return;
  }
  for (int c = 0; c < num_components(); ++c) component(c).assign(op, operand);
}

void SyncOnReadStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  LocalReplicaContext* context = replica(concat(op));
  if (context && num_components() > 1) {
    fail(
        ErrorCode::kUnimplemented, "Variable '", name(), "'.", op,
        ": not defined inside a replica for an ON_READ variable; try assign() of a computed value");
  }
  for (int c = 0; c < num_components(); ++c) component(c).scatter(op, slices, name());
}

Variable SyncOnReadStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options;
  slot_options.name = slot_name;
  slot_options.trainable = false;
  slot_options.synchronization = VariableSynchronization::kOnRead;
  slot_options.aggregation = options().aggregation;
  const Tensor initial = Tensor::full(shape(), initial_value, dtype(), replica_devices_.front());
  return Variable(std::make_shared<SyncOnReadStorage>(initial, std::move(slot_options), owner(),
                                                      replica_devices_));
}

void SyncOnReadStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                               const Gradient& gradient, const UpdateScalars& scalars) {
  if (LocalReplicaContext* context = replica("update")) {
    update_component(context->replica_id(), rule, slots, gradient, scalars);
    return;
  }
  for (int c = 0; c < num_components(); ++c) {
    update_component(c, rule, slots, gradient, scalars);
  }
}

std::vector<NamedTensor> SyncOnReadStorage::save() const {
  require_outside_replicas("save");
  std::vector<NamedTensor> tensors;
  if (num_components() == 1 || options().aggregation != VariableAggregation::kNone) {
    tensors.push_back({name(), aggregated()});
  }
  for (int c = 0; c < num_components(); ++c) {
    tensors.push_back({key_of_component(c), component(c).read()});
  }
  return tensors;
}

void SyncOnReadStorage::restore(const TensorLookup& lookup) {
  require_outside_replicas("restore");
  const int count = num_components();
  bool same_replicas = !lookup(key_of_component(count)).defined();
  for (int c = 0; c < count; ++c) {
    same_replicas = same_replicas && lookup(key_of_component(c)).defined();
  }
  std::vector<Tensor> values;
  for (int c = 0; c < count; ++c) {
    values.push_back(same_replicas ? checked_restore(lookup, key_of_component(c))
                                   : share(checked_restore(lookup, name()), c));
  }
  for (int c = 0; c < count; ++c) {
    component(c).assign(AssignOp::kAssign, values[static_cast<std::size_t>(c)]);
  }
}

}  // namespace tutti::internal
