// Implements variables of a mesh strategy.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_variable.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/names.h"
#include "strategy/mesh/mesh_explanation.h"
#include "strategy/variables/fully_sharded_variable.h"
#include "tensor/tensor_impl.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

MeshStorage::MeshStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                         const MeshPlacement& placement)
    : VariableStorage(initial_value.shape(), initial_value.dtype(), std::move(options), owner),
      placement_(placement) {
  make_parts([&](int position, Device device) {
    const Tensor part = cut(initial_value, position).to(device);
    // A view would keep the full initial value alive.
    return part.num_elements() == initial_value.num_elements() ? part : part.copy();
  });
  note(false);
}

MeshStorage::MeshStorage(const Shape& shape, DType dtype, double value, VariableOptions options,
                         const void* owner, const MeshPlacement& placement)
    : VariableStorage(shape, dtype, std::move(options), owner), placement_(placement) {
  const Shape local = placement_.grid.local_shape(shape, placement_.sharding);
  make_parts([&](int, Device device) { return Tensor::full(local, value, dtype, device); });
  note(true);
}

MeshStorage::~MeshStorage() {
  if (placement_.reads) placement_.reads->forget(*this);
}

void MeshStorage::make_parts(const std::function<Tensor(int position, Device device)>& make) {
  std::map<std::pair<Device, int>, std::size_t> known;
  const std::vector<Device>& devices = placement_.services.replica_devices;
  MeshExplanation* const explanation = MeshExplanation::current();
  const TensorSpec local{placement_.grid.local_shape(shape(), placement_.sharding), dtype()};
  for (std::size_t p = 0; p < devices.size(); ++p) {
    const int position = first_position() + static_cast<int>(p);
    const int index = placement_.grid.index(position, placement_.sharding.cut());
    const auto [found, is_new] = known.try_emplace({devices[p], index}, parts_.size());
    if (is_new) {
      // A variable with one element stores it even in an explanation, because the step may read it.
      const Tensor part = explanation && shape().num_elements() > 1
                              ? explanation->without_elements(local, devices[p], false)
                              : make(position, devices[p]);
      parts_.push_back({static_cast<int>(p), {part, devices[p]}});
    }
    part_of_position_.push_back(found->second);
  }
}

MeshExplanation* MeshStorage::note(bool is_slot) const {
  MeshExplanation* const explanation = MeshExplanation::current();
  if (explanation == nullptr) return nullptr;
  const Device device = placement_.services.replica_devices.front();
  const auto has_part = [&](const Part& part) { return part.component.device() == device; };
  const Shape local = placement_.grid.local_shape(shape(), placement_.sharding);
  explanation->note_variable(*this, placement_.sharding,
                             static_cast<std::uint64_t>(std::ranges::count_if(parts_, has_part)) *
                                 num_bytes(local, dtype()),
                             is_slot);
  return explanation;
}

Tensor MeshStorage::cut(const Tensor& whole, int position) const {
  Tensor part = whole;
  for (int d = 0; d < shape().rank(); ++d) {
    const AxisSet axes = placement_.sharding[d];
    part = part_along(part, d, placement_.grid.size(axes), placement_.grid.index(position, axes));
  }
  return part;
}

const VariableComponent& MeshStorage::component_of(const MeshPosition& position) const {
  const auto local = static_cast<std::size_t>(position.number() - first_position());
  return parts_[part_of_position_[local]].component;
}

VariableComponent& MeshStorage::component_of(const MeshPosition& position) {
  return const_cast<VariableComponent&>(std::as_const(*this).component_of(position));
}

bool MeshStorage::writes(const MeshPosition& position) const {
  const int local = position.number() - first_position();
  return parts_[part_of_position_[static_cast<std::size_t>(local)]].writer == local;
}

Tensor MeshStorage::whole() const {
  if (placement_.sharding.is_whole()) return parts_.front().component.read();
  const OpPartitionerScope none(nullptr);
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;
  ReplicaValues own;
  for (const std::size_t part : part_of_position_) {
    own.push_back({parts_[part].component.read().to(Device{})});
  }
  std::vector<Tensor> parts;
  for (const auto& position :
       placement_.services.of_all_replicas(std::move(own), "read " + name())) {
    parts.push_back(position.front().dense());
  }
  // Joins the parts along one dimension at a time. After each round, joined[p] consists of the
  // parts of position p's group.
  for (int d = 0; d < shape().rank(); ++d) {
    const AxisSet axes = placement_.sharding[d];
    if (axes == 0) continue;
    std::vector<Tensor> joined(parts.size());
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::vector<int> group = placement_.grid.group(static_cast<int>(p), axes);
      Tensor& first = joined[static_cast<std::size_t>(group.front())];
      if (!first.defined()) {
        std::vector<Tensor> members;
        for (const int member : group) members.push_back(parts[static_cast<std::size_t>(member)]);
        first = tutti::concat(members, d);
      }
      joined[p] = first;
    }
    parts = std::move(joined);
  }
  return parts.front();
}

Sharding MeshStorage::read_sharding() const {
  Sharding read = placement_.sharding;
  for (AxisSet& axes : read.dims) axes &= static_cast<AxisSet>(~placement_.gathered);
  return read;
}

Tensor MeshStorage::read_as(DType dtype) const {
  MeshPosition* const position = MeshPosition::current(*this, "value");
  if (position == nullptr) return whole();
  MeshExplanation* const explanation = note(false);
  const Sharding read = read_sharding();
  ShardedTensor value{read, component_of(*position).read(), {shape(), this->dtype()}};
  if (read != placement_.sharding) {
    value.local = cast_part(value.local, dtype);
    value.spec.dtype = dtype;
    if (explanation || !position->needs_workers(placement_.gathered)) {
      value.local = position->local_as({placement_.sharding, value.local, value.spec}, read);
    } else {
      int d = 0;  // the dimension along which the storage is split
      while (placement_.sharding[d] == read[d]) ++d;
      value.local = position->joined(
          position->exchange_ahead(value.local, placement_.gathered, *this, *placement_.reads), d);
    }
  }
  return position->tensor_of(value);
}

StartedGather MeshStorage::start_gather(DType dtype) const {
  std::vector<Tensor> own;
  for (const std::size_t part : part_of_position_) {
    own.push_back(cast_part(parts_[part].component.read(), dtype));
  }
  return placement_.groups.start_gather(placement_.gathered, own, "read " + name());
}

Tensor MeshStorage::cast_part(const Tensor& part, DType dtype) {
  if (part.dtype() == dtype) return part;
  const OpPartitionerScope none(nullptr);
  const GradientTape::StopRecording stop;
  const NoDeviceScope where_it_is;
  return cast(part, dtype);
}

std::optional<std::uint64_t> MeshStorage::released_version() const {
  if (!placement_.reads_again || read_sharding() == placement_.sharding) return std::nullopt;
  return version();
}

std::vector<Tensor> MeshStorage::local_components() const {
  std::vector<Tensor> values;
  for (const Part& part : parts_) values.push_back(part.component.read());
  return values;
}

std::vector<Device> MeshStorage::devices() const {
  std::vector<Device> devices;
  for (const Part& part : parts_) devices.push_back(part.component.device());
  return devices;
}

void MeshStorage::assign(AssignOp op, const Tensor& value, ValueOrigin) {
  const Tensor operand = checked_operand(op, value);
  MeshPosition* const position = MeshPosition::current(*this, "assign");
  if (position == nullptr) return assign_replicated(op, operand);
  Tensor local = position->local_as(position->part_of(operand), placement_.sharding);
  if (MeshExplanation::current()) return;
  RendezvousHeader header{
      .kind = RendezvousKind::kAssign, .method = static_cast<int>(op), .variable = this};
  // After all positions have arrived, no operation reads the old value any more.
  position->exchange_arguments<Tensor>(
      std::move(header), local, [&](const std::vector<Tensor*>& locals) {
        change_version();
        for (Part& part : parts_) {
          part.component.assign(op, *locals[static_cast<std::size_t>(part.writer)]);
        }
      });
}

void MeshStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  change_version();
  if (MeshPosition* const position = MeshPosition::current(*this, "assign_replicated")) {
    const Tensor local = position->local_as(position->part_of(operand), placement_.sharding);
    if (writes(*position) && !MeshExplanation::current()) {
      component_of(*position).assign(op, local);
    }
    return;
  }
  if (MeshExplanation::current()) return;
  for (Part& part : parts_) {
    const Tensor own = cut(operand, first_position() + part.writer).to(part.component.device());
    part.component.assign(op, own.num_elements() == operand.num_elements() ? own : own.copy());
  }
}

void MeshStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  MeshPosition* const position = MeshPosition::current(*this, "scatter");
  IndexedSlices own = slices;
  if (position != nullptr) {
    own.values = position->whole(slices.values);
    own.indices = position->whole(slices.indices);
  }
  const auto write = [&](const Tensor& before) {
    if (MeshExplanation::current()) return before;
    VariableComponent all(before.copy(), before.device());
    all.scatter(op, own, name());
    return all.read();
  };
  if (position == nullptr) return assign_replicated(AssignOp::kAssign, write(whole()));
  assign(AssignOp::kAssign, write(position->whole(read())), ValueOrigin::kComputed);
}

Variable MeshStorage::create_slot(const std::string& slot_name, double initial_value) {
  VariableOptions slot_options{.name = slot_name, .trainable = false};
  return Variable(std::make_shared<MeshStorage>(shape(), dtype(), initial_value,
                                                std::move(slot_options), owner(), placement_));
}

std::vector<MeshStorage*> MeshStorage::storages_of(std::span<const Variable> slots,
                                                   const UpdateRule& rule) {
  std::vector<MeshStorage*> storages;
  for (const Variable& slot : slots) {
    auto* const storage = dynamic_cast<MeshStorage*>(&slot.storage());
    require(storage && storage->shape() == shape() && storage->sharding() == sharding(),
            "Variable '", name(), "'.update (", rule.name(), "): the slot '", slot.name(),
            "' was not made for this variable; call create_slot()");
    storages.push_back(storage);
  }
  return storages;
}

void MeshStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                         const Gradient& gradient, const UpdateScalars& scalars) {
  const std::vector<MeshStorage*> storages = storages_of(slots, rule);
  change_version();
  MeshPosition* const position = MeshPosition::current(*this, "update");
  const auto local_gradient = [&](const Gradient& given) -> Gradient {
    if (given.is_none() || (given.is_slices() && placement_.sharding.is_whole())) return given;
    return position->local_as(position->part_of(given.to_dense()), placement_.sharding);
  };
  if (position == nullptr) {
    std::vector<Gradient> gradients;
    for (const Part& part : parts_) {
      gradients.push_back(gradient.is_none()
                              ? gradient
                              : Gradient(cut(gradient.to_dense(), first_position() + part.writer)));
    }
    return update_with_norms(storages, rule, gradients, scalars);
  }
  Gradient own = local_gradient(gradient);
  if (MeshExplanation* const explanation = note(false)) {
    for (const MeshStorage* slot : storages) slot->note(true);
    return explanation->note_gradient(*this, own);
  }
  if (rule.uses_norms() && !placement_.sharding.is_whole()) {
    RendezvousHeader header{.kind = RendezvousKind::kAssign, .variable = this};
    return position->exchange_arguments<Gradient>(
        std::move(header), own, [&](const std::vector<Gradient*>& locals) {
          std::vector<Gradient> gradients;
          for (const Part& part : parts_) {
            gradients.push_back(*locals[static_cast<std::size_t>(part.writer)]);
          }
          update_with_norms(storages, rule, gradients, scalars);
        });
  }
  if (!writes(*position)) return;
  std::vector<VariableComponent*> memory;
  for (MeshStorage* slot : storages) memory.push_back(&slot->component_of(*position));
  try {
    const OpPartitionerScope none(nullptr);
    VariableComponent::update(component_of(*position), memory, rule, own, scalars);
  } catch (const Error& error) {
    throw error.with_context(tutti::concat("Variable '", name(), "'"));
  }
}

void MeshStorage::update_with_norms(std::span<MeshStorage* const> slots, const UpdateRule& rule,
                                    const std::vector<Gradient>& gradients,
                                    const UpdateScalars& scalars) {
  const OpPartitionerScope none(nullptr);
  const auto memory_of = [&](std::size_t part) {
    std::vector<VariableComponent*> memory;
    for (MeshStorage* slot : slots) memory.push_back(&slot->parts_[part].component);
    return memory;
  };
  if (!rule.uses_norms() || placement_.sharding.is_whole()) {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      VariableComponent::update(parts_[p].component, memory_of(p), rule, gradients[p], scalars);
    }
    return;
  }
  // The norms are those of the full variable, summed in the same order as on one device.
  MeshStorage directions(shape(), dtype(), 0.0, {.name = name() + "/direction"}, owner(),
                         placement_);
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    MutableTensor direction(parts_[p].component.read().shape(), dtype(), Device{});
    const DirectionRule direct(rule, direction.data());
    VariableComponent::update(parts_[p].component, memory_of(p), direct, gradients[p], scalars);
    directions.parts_[p].component.assign(AssignOp::kAssign, direction.freeze());
  }
  const UpdateScalars with_norms = scalars_with_norms(scalars, whole(), directions.whole());
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    VariableComponent::update(parts_[p].component, memory_of(p), ApplyRule(rule),
                              directions.parts_[p].component.read(), with_norms);
  }
}

void MeshStorage::restore(const TensorLookup& lookup) {
  assign_replicated(AssignOp::kAssign, checked_restore(lookup, name()));
}

}  // namespace tutti::internal
