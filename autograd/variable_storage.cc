// Implements what all variables share (options, identity and validation) and local storage.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable_storage.h"

#include <atomic>

#include "core/names.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/random.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Names of variable options, spelled as in tf.

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization) {
  constexpr std::string_view kNames[] = {"AUTO", "NONE", "ON_WRITE", "ON_READ"};
  return out << internal::name_in(kNames, synchronization, "VariableSynchronization");
}

std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation) {
  constexpr std::string_view kNames[] = {"NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"};
  return out << internal::name_in(kNames, aggregation, "VariableAggregation");
}

std::ostream& operator<<(std::ostream& out, AssignOp op) {
  constexpr std::string_view kNames[] = {"assign", "assign_add", "assign_sub"};
  return out << internal::name_in(kNames, op, "AssignOp");
}

std::ostream& operator<<(std::ostream& out, ScatterOp op) {
  constexpr std::string_view kNames[] = {"scatter_add",   "scatter_sub", "scatter_mul",
                                         "scatter_div",   "scatter_min", "scatter_max",
                                         "scatter_update"};
  return out << internal::name_in(kNames, op, "ScatterOp");
}

namespace {

std::uint64_t next_variable_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

VariableOptions completed(VariableOptions options, DType dtype) {
  if (options.name.empty()) options.name = concat("variable_", next_variable_number());
  if (options.synchronization == VariableSynchronization::kAuto) {
    options.synchronization = VariableSynchronization::kOnWrite;
  }
  const bool on_read = options.synchronization == VariableSynchronization::kOnRead;
  if (!options.trainable) options.trainable = is_floating(dtype) && !on_read;
  return options;
}

}  // namespace

VariableStorage::VariableStorage(const Shape& shape, DType dtype, VariableOptions options,
                                 const void* owner)
    : options_(completed(std::move(options), dtype)),
      shape_(shape),
      dtype_(dtype),
      owner_(owner),
      id_(next_variable_id()) {}

std::int64_t TensorPart::count() const {
  std::int64_t count = 0;
  for (const Tensor& value : values) count += value.num_elements();
  return count;
}

void VariableStorage::restore_part(const Tensor&) {
  fail(ErrorCode::kInternal, "Variable '", name(),
       "'.restore_part: this process has the full variable; call restore()");
}

Tensor VariableStorage::read_rows(const Tensor& rows) const {
  const GradientTape::StopRecording stop;
  const NoDeviceScope where_the_value_is;
  const Tensor value = read();
  return gather(value, rows.to(value.device()));
}

Tensor VariableStorage::checked_value(const Tensor& value, const char* method) const {
  internal::require(value.defined(), "Variable '", name(), "'.", method,
                    ": the value is undefined; expected a tensor of shape ", shape_);
  internal::require(value.shape() == shape_, "Variable '", name(), "'.", method,
                    ": the shape does not match; expected ", shape_, ", got ", value.shape());
  if (value.dtype() == dtype_) return value;
  const GradientTape::StopRecording stop;  // the stored value is a constant for every tape
  const NoDeviceScope where_it_is;         // casts on the value's own device
  return cast(value, dtype_);
}

Tensor VariableStorage::checked_operand(AssignOp op, const Tensor& value) const {
  const std::string method = concat(op);
  internal::require(op == AssignOp::kAssign || dtype() != DType::kBool, "Variable '", name(), "'.",
                    method, ": expected a numeric type, got bool; call assign()");
  return checked_value(value, method.c_str());
}

Tensor VariableStorage::checked_restore(const TensorLookup& lookup, const std::string& key) const {
  Tensor value = lookup(key);
  if (!value.defined()) {
    fail(ErrorCode::kNotFound, "Variable '", name(), "'.restore: the checkpoint has no tensor '",
         key, "'; use the checkpoint of a program with this variable");
  }
  internal::require(value.shape() == shape_, "Variable '", name(), "'.restore: the shape of '", key,
                    "' does not match; expected ", shape_, ", got ", value.shape());
  internal::require(value.dtype() == dtype_, "Variable '", name(), "'.restore: the dtype of '", key,
                    "' does not match; expected ", dtype_, ", got ", value.dtype());
  return value;
}

namespace {

class LocalStorage final : public VariableStorage {
 public:
  LocalStorage(const Tensor& initial_value, Device device, VariableOptions options,
               const void* owner)
      : VariableStorage(initial_value.shape(), initial_value.dtype(), std::move(options), owner),
        component_(initial_value, device) {}

  Tensor read() const override { return component_.read(); }
  std::vector<Tensor> local_components() const override { return {component_.read()}; }
  std::vector<Device> devices() const override { return {component_.device()}; }

  void assign(AssignOp op, const Tensor& value, ValueOrigin) override {
    assign_replicated(op, value);
  }

  void assign_replicated(AssignOp op, const Tensor& value) override {
    require_one_writer(concat(op));
    component_.assign(op, checked_operand(op, value));
  }

  void scatter(ScatterOp op, const IndexedSlices& slices) override {
    require_one_writer(concat(op));
    component_.scatter(op, slices, name());
  }

  Variable create_slot(const std::string& slot_name, double initial_value) override {
    const Device device = component_.device();
    return Variable(make_local_storage(Tensor::full(shape(), initial_value, dtype(), device),
                                       device, {.name = slot_name, .trainable = false}, owner()));
  }

  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override {
    require_one_writer("update");
    std::vector<VariableComponent*> components;
    for (const Variable& slot : slots) components.push_back(&component_of_slot(slot, rule));
    try {
      VariableComponent::update(component_, components, rule, gradient, scalars);
    } catch (const Error& error) {
      throw error.with_context(concat("Variable '", name(), "'"));
    }
  }

  std::vector<NamedTensor> save() const override { return {{name(), component_.read()}}; }

  void restore(const TensorLookup& lookup) override {
    component_.assign(AssignOp::kAssign, checked_restore(lookup, name()));
  }

 private:
  /// Rejects writes if this process has several replicas, because each replica would change the
  /// variable.
  void require_one_writer(std::string_view method) const {
    const ReplicaGroup* const group = ReplicaGroup::find_current();
    if (!group || group->num_local_replicas() == 1 || options().allow_divergent) return;
    fail(ErrorCode::kFailedPrecondition, "Variable '", name(), "'.", method, ": called in replica ",
         group->replica_id(), " of ", group->num_replicas(),
         " of a strategy that did not create the variable, so each replica would change the "
         "variable; expected a variable of the strategy; create it and the optimizer within "
         "strategy.scope()");
  }

  VariableComponent& component_of_slot(const Variable& slot, const UpdateRule& rule) const {
    auto* storage = dynamic_cast<LocalStorage*>(&slot.storage());
    internal::require(storage && storage->shape() == shape() && storage->dtype() == dtype(),
                      "Variable '", name(), "'.update (", rule.name(), "): the slot '", slot.name(),
                      "' was not created for this variable; call create_slot()");
    return storage->component_;
  }

  VariableComponent component_;
};

}  // namespace

std::shared_ptr<VariableStorage> make_local_storage(const Tensor& initial_value, Device device,
                                                    VariableOptions options, const void* owner) {
  internal::require(initial_value.defined(), "Variable '", options.name,
                    "': the initial value is undefined; pass a defined tensor");
  return std::make_shared<LocalStorage>(initial_value, device, std::move(options), owner);
}

}  // namespace tutti
