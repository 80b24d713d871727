// Implements ON_READ variables.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/sync_on_read_variable.h"

#include <algorithm>
#include <functional>

#include "core/names.h"
#include "strategy/replicas/strategy_mode.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

SyncOnReadStorage::SyncOnReadStorage(const Tensor& initial_value, VariableOptions options,
                                     const void* owner, const std::vector<Device>& replica_devices,
                                     std::shared_ptr<WorkerTeam> team,
                                     std::weak_ptr<const ReplicaServices> services)
    : DistributedStorage(initial_value, std::move(options), owner, replica_devices),
      replica_devices_(replica_devices),
      team_(std::move(team)),
      services_(std::move(services)),
      updates_(replica_devices.size(), 0) {}

Tensor SyncOnReadStorage::read() const {
  if (!replica_of(owner())) return aggregated();
  LocalReplicaContext* context = replica("read");
  if (AggregateOnReadScope::active()) return aggregated_by_all(*context);
  return component(context->local_replica()).read();
}

SyncOnReadStorage::AllComponents SyncOnReadStorage::all_components() const {
  if (!team_) return {local_components(), updates_};
  ReplicaValues own;
  for (int c = 0; c < num_components(); ++c) {
    own.push_back({component(c).read()});
    if (!counts_updates()) continue;
    own.back().push_back(Tensor::scalar(updates_[static_cast<std::size_t>(c)], DType::kInt64));
  }
  AllComponents all;
  for (const std::vector<Gradient>& of_replica : team_->gather(own, concat("read ", name()))) {
    all.values.push_back(of_replica.at(0).dense());
    all.updates.push_back(counts_updates() ? of_replica.at(1).dense().item_int() : 0);
  }
  return all;
}

Tensor SyncOnReadStorage::aggregated() const {
  return num_replicas() == 1 ? component(0).read() : aggregated(all_components());
}

Tensor SyncOnReadStorage::aggregated(const AllComponents& all) const {
  if (all.values.size() == 1) return all.values.front();
  const Device destination = component(0).device();
  const std::shared_ptr<const ReplicaServices> services = services_.lock();
  AllComponents updated;
  for (std::size_t r = 0; r < all.values.size(); ++r) {
    if (all.updates[r] == 0) continue;
    updated.values.push_back(all.values[r]);
    updated.updates.push_back(all.updates[r]);
  }
  if (updated.values.empty()) return aggregate(*this, services.get(), all.values, destination);
  const auto differs = [&](std::int64_t count) { return count != updated.updates.front(); };
  if (!is_floating(dtype()) || std::ranges::none_of(updated.updates, differs))
    return aggregate(*this, services.get(), updated.values, destination);
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_host;
  std::int64_t total = 0;
  for (const std::int64_t count : updated.updates) total += count;
  for (std::size_t i = 0; i < updated.values.size(); ++i) {
    const double weight = static_cast<double>(updated.updates[i]) / static_cast<double>(total);
    updated.values[i] = cast(updated.values[i].to(Device{}), DType::kFloat64) * weight;
  }
  const Tensor mean = reduce_values(services.get(), ReduceOp::kSum, updated.values, Device{});
  return cast(mean, dtype()).to(destination);
}

void SyncOnReadStorage::note_update(int index) {
  if (!counts_updates()) return;
  ++updates_[static_cast<std::size_t>(index)];
  // Replays of a captured step write to every replica's component but do not run this code.
  if (StepRecorder* const recorder = StepRecorder::current()) {
    recorder->on_replay([] {},
                        [this] {
                          for (std::int64_t& count : updates_) ++count;
                        });
  }
}

void SyncOnReadStorage::set_components(std::span<const Tensor> values) {
  require_outside_replicas("set_components");
  for (int c = 0; c < num_components(); ++c)
    component(c).assign(AssignOp::kAssign, values[static_cast<std::size_t>(c)]);
}

Tensor SyncOnReadStorage::aggregated_by_all(LocalReplicaContext& context) const {
  if (StepTracer* const tracer = StepTracer::current()) {
    return aggregate_in_trace(*tracer, *this, component(context.local_replica()).read());
  }
  RendezvousHeader header{.kind = RendezvousKind::kAggregateRead, .variable = this};
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
  internal::require(dtype() != DType::kBool, "Variable '", name(),
                    "': aggregation SUM: expected a numeric type, got bool");
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
    note_update(context->local_replica());
    return;
  }
  const bool is_sum = options().aggregation == VariableAggregation::kSum;
  if (is_sum && op != AssignOp::kAssign) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", op,
         ": not supported outside replicas for an ON_READ variable with aggregation SUM; call "
         "assign()");
  }
  for (int c = 0; c < num_components(); ++c)
    component(c).assign(op, share_of_component(operand, c));
  if (op == AssignOp::kAssign) std::ranges::fill(updates_, 0);
}

void SyncOnReadStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (LocalReplicaContext* context = replica("assign_replicated")) {
    component(context->local_replica()).assign(op, operand);
    note_update(context->local_replica());
    return;
  }
  for (int c = 0; c < num_components(); ++c) component(c).assign(op, operand);
}

void SyncOnReadStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  LocalReplicaContext* context = replica(concat(op));
  if (context && num_replicas() > 1) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.", op,
         ": not supported inside a replica for an ON_READ variable; call assign() with a computed "
         "value");
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
                                                      replica_devices_, team_, services_));
}

void SyncOnReadStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                               const Gradient& gradient, const UpdateScalars& scalars) {
  if (LocalReplicaContext* context = replica("update")) {
    update_component(context->local_replica(), rule, slots, gradient, scalars);
    note_update(context->local_replica());
    return;
  }
  for (int c = 0; c < num_components(); ++c) {
    update_component(c, rule, slots, gradient, scalars);
  }
}

std::vector<NamedTensor> SyncOnReadStorage::save() const {
  require_outside_replicas("save");
  std::vector<NamedTensor> tensors;
  const AllComponents all = all_components();
  if (all.values.size() == 1 || options().aggregation != VariableAggregation::kNone)
    tensors.push_back({name(), aggregated(all)});
  for (std::size_t r = 0; r < all.values.size(); ++r)
    tensors.push_back({key_of_replica(static_cast<int>(r)), all.values[r]});
  if (counts_updates() && std::ranges::any_of(all.updates, std::identity{})) {
    const Shape shape{static_cast<std::int64_t>(all.updates.size())};
    tensors.push_back({key_of_updates(), Tensor::from<std::int64_t>(shape, all.updates)});
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
  set_components(values);
  std::ranges::fill(updates_, 0);
  const Tensor updates = same_replicas && counts_updates() ? lookup(key_of_updates()) : Tensor();
  if (!updates.defined()) return;  // files from earlier versions have no update counts
  if (updates.dtype() != DType::kInt64 || updates.shape() != Shape{count}) {
    fail(ErrorCode::kInvalidArgument, "Variable '", name(), "': expected '", key_of_updates(),
         "' of int64 [", count, "], got ", updates.dtype(), " ", updates.shape());
  }
  const Tensor on_host = updates.to(Device{});
  const auto own = on_host.host_span<std::int64_t>().subspan(
      static_cast<std::size_t>(first_replica()), updates_.size());
  std::ranges::copy(own, updates_.begin());
}

AggregatedComponents::AggregatedComponents(std::span<const Variable> variables) {
  for (const Variable& variable : variables) {
    auto* const storage = dynamic_cast<SyncOnReadStorage*>(&variable.storage());
    if (!storage || !storage->counts_updates()) continue;
    const Tensor aggregate = storage->read();
    std::vector<Tensor> components = storage->local_components();
    storage->set_components(std::vector<Tensor>(components.size(), aggregate));
    kept_.push_back({variable, std::move(components)});
  }
}

AggregatedComponents::~AggregatedComponents() {
  for (const Kept& kept : kept_)
    dynamic_cast<SyncOnReadStorage&>(kept.variable.storage()).set_components(kept.components);
}

}  // namespace tutti::internal
