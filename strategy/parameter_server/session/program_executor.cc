// Implements ProgramExecutor: runs operations with dispatch(), and variables in local storage.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/program_executor.h"

#include <optional>
#include <utility>

#include "strategy/parameter_server/protocol/message.h"
#include "tensor/op_call_check.h"
#include "tutti/core/error.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::internal {
namespace {

template <class... Parts>
void expect_operation(bool holds, const Parts&... expected) {
  if (!holds) fail(ErrorCode::kInvalidArgument, "expected ", expected...);
}

template <class T>
std::span<const T> elements_of(const Tensor& tensor, std::int64_t count) {
  expect_operation(tensor.dtype() == dtype_of<T>() && tensor.num_elements() == count, count,
                   " numbers of ", dtype_of<T>(), ", got ", tensor.dtype(), " ", tensor.shape());
  return tensor.host_span<T>();
}

RandomKey key_of(const Tensor& tensor) {
  const auto words = elements_of<std::int64_t>(tensor, 5);
  const auto word = [&](std::size_t i) { return static_cast<std::uint64_t>(words[i]); };
  return {word(0), static_cast<std::uint32_t>(word(1)), word(2), word(3), word(4)};
}

UpdateScalars scalars_of(const Tensor& tensor) {
  const auto numbers = elements_of<double>(tensor, 4);
  constexpr double kMost = 9e15;  // doubles represent all integers up to this value
  expect_operation(numbers[1] >= 0.0 && numbers[1] <= kMost, "an iteration from 0 to ", kMost,
                   ", got ", numbers[1]);
  UpdateScalars scalars;
  scalars.learning_rate = numbers[0];
  scalars.iteration = static_cast<std::int64_t>(numbers[1]);
  scalars.gradient_scale = numbers[2];
  scalars.weight_decay = numbers[3];
  return scalars;
}

std::vector<Tensor> compute_outputs(const ProgramOperation& operation, std::vector<Tensor> inputs) {
  OpCall call{checked_enum(operation.op(), OpId{}, OpId::kDropout), std::move(inputs),
              get_specs(operation), get_attributes(operation), SourceLocation()};
  auto* const dropout = std::get_if<DropoutAttributes>(&call.attributes);
  if (dropout != nullptr && call.inputs.size() == 2) {
    dropout->key = key_of(call.inputs.back());
    call.inputs.pop_back();
  }
  check_call(call);
  return dispatch(std::move(call));
}

}  // namespace

Tensor scalars_tensor(const UpdateScalars& scalars) {
  return Tensor::from<double>({4},
                              {scalars.learning_rate, static_cast<double>(scalars.iteration),
                               scalars.gradient_scale, scalars.weight_decay},
                              Device{});
}

Tensor key_tensor(const RandomKey& key) {
  const auto word = [](std::uint64_t number) { return static_cast<std::int64_t>(number); };
  return Tensor::from<std::int64_t>(
      {5}, {word(key.seed), word(key.purpose), word(key.a), word(key.b), word(key.c)}, Device{});
}

std::vector<Tensor> ProgramExecutor::execute(const ProgramOperation& operation,
                                             std::vector<Tensor> inputs) {
  const NoDeviceScope own_devices;
  std::optional<DeviceScope> device;
  if (!operation.device().empty()) device.emplace(operation.device());
  if (operation.kind() == TaskProgram::COMPUTE) return compute_outputs(operation, inputs);
  const auto takes = [&](std::size_t fewest, std::size_t most) {
    expect_operation(inputs.size() >= fewest && inputs.size() <= most, fewest, " to ", most,
                     " inputs, got ", inputs.size());
  };
  const MutexLock lock(mutex_);
  switch (operation.kind()) {
    case TaskProgram::CREATE:
      takes(0, 1), create(operation, inputs);
      return {};
    case TaskProgram::READ:
      return {find(operation.variable()).read()};
    case TaskProgram::ASSIGN:
      takes(1, 1),
          find(operation.variable())
              .assign_replicated(
                  checked_enum(operation.op(), AssignOp::kAssign, AssignOp::kSubtract), inputs[0]);
      return {};
    case TaskProgram::SCATTER: {
      takes(2, 2);
      VariableStorage& storage = find(operation.variable());
      storage.scatter(checked_enum(operation.op(), ScatterOp::kAdd, ScatterOp::kUpdate),
                      {inputs[0], inputs[1], storage.shape()});
      return {};
    }
    case TaskProgram::UPDATE:
      takes(2, 3), update(operation, inputs);
      return {};
    default:
      fail(ErrorCode::kDataLoss, "program: unknown operation kind ",
           static_cast<int>(operation.kind()));
  }
}

void ProgramExecutor::create(const ProgramOperation& operation, const std::vector<Tensor>& inputs) {
  const std::vector<TensorSpec> specs = get_specs(operation);
  expect_operation(!operation.variable().empty() && specs.size() == 1 &&
                       (!inputs.empty() || operation.numbers_size() > 0),
                   "the name, shape and initial value of a variable");
  Variable& variable = variables_[operation.variable()];
  const TensorSpec& spec = specs.front();
  if (!variable.defined()) {
    const Device device = current_device();
    const Tensor initial = inputs.empty()
                               ? Tensor::full(spec.shape, operation.numbers(0), spec.dtype, device)
                               : inputs.front();
    variable = Variable(make_local_storage(initial, device, {.name = operation.variable()}));
  }
  expect_operation(variable.shape() == spec.shape && variable.dtype() == spec.dtype, spec.dtype,
                   " ", spec.shape, ", but the variable exists as ", variable.dtype(), " ",
                   variable.shape(), "; try another name");
}

void ProgramExecutor::update(const ProgramOperation& operation, const std::vector<Tensor>& inputs) {
  std::shared_ptr<const UpdateRule>& rule = rules_[operation.rule()];
  if (rule == nullptr) rule = make_update_rule(operation.rule());
  std::vector<Variable> slots;
  for (const std::string& slot : operation.slots()) {
    (void)find(slot);
    slots.push_back(variables_.at(slot));
  }
  expect_operation(slots.size() == rule->slots().size(), rule->slots().size(), " slots, got ",
                   slots.size());
  VariableStorage& storage = find(operation.variable());
  const Gradient gradient = inputs.size() == 2
                                ? Gradient(inputs[1])
                                : Gradient(IndexedSlices{inputs[1], inputs[2], storage.shape()});
  storage.update(*rule, slots, gradient, scalars_of(inputs[0]));
}

VariableStorage& ProgramExecutor::find(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found != variables_.end() && found->second.defined()) return found->second.storage();
  fail(ErrorCode::kNotFound, "there is no variable '", name,
       "' on this task; expected one that a session has created; the task may have been restarted");
}

}  // namespace tutti::internal
