// The variable of a program without strategy: one component on one device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable.h"

namespace tutti {
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
    const std::string method = concat(op);
    if (op != AssignOp::kAssign && dtype() == DType::kBool) {
      fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.", method,
           ": expected a number type, got bool; try assign()");
    }
    component_.assign(op, checked_value(value, method.c_str()));
  }

  void scatter(ScatterOp op, const IndexedSlices& slices) override {
    component_.scatter(op, slices, name());
  }

  Variable create_slot(const std::string& slot_name, double initial_value) override {
    VariableOptions slot_options;
    slot_options.name = slot_name;
    slot_options.trainable = false;
    const Device device = component_.device();
    return Variable(make_local_storage(Tensor::full(shape(), initial_value, dtype(), device),
                                       device, std::move(slot_options), owner()));
  }

  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override {
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
  VariableComponent& component_of_slot(const Variable& slot, const UpdateRule& rule) const {
    auto* storage = dynamic_cast<LocalStorage*>(&slot.storage());
    if (!storage || storage->shape() != shape() || storage->dtype() != dtype()) {
      fail(ErrorCode::kInvalidArgument, "Variable '", name(), "'.update (", rule.name(),
           "): the slot '", slot.name(), "' was not made for this variable; try create_slot()");
    }
    return storage->component_;
  }

  VariableComponent component_;
};

}  // namespace

std::shared_ptr<VariableStorage> make_local_storage(const Tensor& initial_value, Device device,
                                                    VariableOptions options, const void* owner) {
  if (!initial_value.defined()) {
    fail(ErrorCode::kInvalidArgument, "Variable '", options.name,
         "': the initial value is undefined");
  }
  return std::make_shared<LocalStorage>(initial_value, device, std::move(options), owner);
}

}  // namespace tutti
