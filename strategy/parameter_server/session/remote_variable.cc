// Implements RemoteStorage, which records accesses to a variable as operations of its task.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/remote_variable.h"

#include <optional>
#include <utility>

#include "core/names.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {

/// The session recorder of this thread; on a thread without a scope, a recorder for one operation.
class RemoteStorage::Recorder {
 public:
  explicit Recorder(const std::shared_ptr<SessionCore>& core)
      : current_(SessionRecorder::find(*core)) {
    if (current_ != nullptr) return;
    own_.emplace(core);
    current_ = &*own_;
    scope_.emplace(*current_);
  }
  SessionRecorder* operator->() { return current_; }

 private:
  SessionRecorder* current_;
  std::optional<SessionRecorder> own_;
  std::optional<RemoteRecorderScope> scope_;
};

RemoteStorage::RemoteStorage(std::shared_ptr<SessionCore> core,
                             std::shared_ptr<const TaskPlace> place, const TensorSpec& spec,
                             const std::variant<Tensor, double>& initial, VariableOptions options)
    : VariableStorage(spec.shape, spec.dtype, std::move(options), nullptr),
      core_(std::move(core)),
      place_(std::move(place)) {
  core_->add_variable(name(), place_->task);
  ProgramOperation operation;
  const Tensor* const value = std::get_if<Tensor>(&initial);
  if (value == nullptr) operation.add_numbers(std::get<double>(initial));
  try {
    record(TaskProgram::CREATE, 0, {value, value != nullptr ? 1u : 0u}, std::move(operation),
           {spec});
  } catch (...) {
    core_->remove_variable(name());
    throw;
  }
}

void RemoteStorage::record(TaskProgram::Kind kind, int op, std::span<const Tensor> inputs,
                           ProgramOperation operation, const std::vector<TensorSpec>& specs) const {
  operation.set_kind(kind);
  operation.set_op(static_cast<std::uint32_t>(op));
  operation.set_variable(name());
  operation.set_where(concat("variable '", name(), "'"));
  (void)Recorder(core_)->record(place_, std::move(operation), inputs, specs);
}

Tensor RemoteStorage::read() const {
  return Recorder(core_)->read(place_, name(), {shape(), dtype()});
}

void RemoteStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  record(TaskProgram::ASSIGN, static_cast<int>(op), {&operand, 1});
}

void RemoteStorage::scatter(ScatterOp op, const IndexedSlices& slices) {
  check_slices(slices, shape(), dtype(), concat("Variable '", name(), "'.", op));
  const Tensor inputs[] = {slices.values, slices.indices};
  record(TaskProgram::SCATTER, static_cast<int>(op), inputs);
}

Variable RemoteStorage::create_slot(const std::string& slot_name, double initial_value) {
  return Variable(
      std::make_shared<RemoteStorage>(core_, place_, TensorSpec{shape(), dtype()}, initial_value,
                                      VariableOptions{.name = slot_name, .trainable = false}));
}

const std::string& RemoteStorage::description_of(const UpdateRule& rule) {
  if (rule_ != rule.number()) {
    description_ = describe_update_rule(rule);
    rule_ = rule.number();
  }
  return description_;
}

void RemoteStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                           const Gradient& gradient, const UpdateScalars& scalars) {
  if (gradient.is_none()) return;
  ProgramOperation operation;
  operation.set_rule(description_of(rule));
  for (const Variable& slot : slots) {
    const auto* const storage = dynamic_cast<RemoteStorage*>(&slot.storage());
    require(storage && storage->core_ == core_ && storage->place_->task == place_->task,
            "Variable '", name(), "'.update (", rule.name(), "): the slot '", slot.name(),
            "' was not created for this variable; call create_slot()");
    operation.add_slots(slot.name());
  }
  Recorder recorder(core_);
  std::vector<Tensor> inputs = {recorder->scalars(scalars)};
  if (gradient.is_slices()) {
    inputs.push_back(gradient.slices().values);
    inputs.push_back(gradient.slices().indices);
  } else {
    inputs.push_back(gradient.dense());
  }
  record(TaskProgram::UPDATE, 0, inputs, std::move(operation));
}

void RemoteStorage::restore(const TensorLookup& lookup) {
  assign_replicated(AssignOp::kAssign, checked_restore(lookup, name()));
}

std::shared_ptr<VariableStorage> RemoteVariableCreator::create(
    const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options) {
  const DeviceScope* const scope = DeviceScope::current();
  if (scope == nullptr || !scope->is_remote() || options.on_host) {
    return here_.create(initializer, key, std::move(options));
  }
  const std::shared_ptr<const TaskPlace> place = core_->place(scope->merged());
  const NoDeviceScope made_here;
  const Tensor initial = initializer({Device{}, key});
  return std::make_shared<RemoteStorage>(core_, place, TensorSpec{initial.shape(), initial.dtype()},
                                         initial, std::move(options));
}

}  // namespace tutti::internal
