// Operations of programs: kernels by way of dispatch(), variables by their local storage.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/program_executor.h"

#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "tensor/op_call_check.h"
#include "tutti/core/error.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::internal {
namespace {

using Kind = ProgramOperation::Kind;

template <class T>
std::span<const T> elements_of(const Tensor& tensor, std::size_t count, const char* what) {
  if (tensor.dtype() != dtype_of<T>() || tensor.num_elements() != static_cast<std::int64_t>(count))
    fail(ErrorCode::kInvalidArgument, what, ": expected ", count, " numbers of ", dtype_of<T>(),
         ", got ", tensor.dtype(), " ", tensor.shape());
  return tensor.host_span<T>();
}

RandomKey key_of(const Tensor& tensor) {
  const auto words = elements_of<std::int64_t>(tensor, 5, "dropout: the key");
  const auto word = [&](std::size_t i) { return static_cast<std::uint64_t>(words[i]); };
  return {word(0), static_cast<std::uint32_t>(word(1)), word(2), word(3), word(4)};
}

UpdateScalars scalars_of(const Tensor& tensor) {
  const auto numbers = elements_of<double>(tensor, 4, "update: the scalars");
  constexpr double kMost = 9e15;  // integers that a double holds
  if (!(numbers[1] >= 0.0 && numbers[1] <= kMost)) {
    fail(ErrorCode::kInvalidArgument, "update: expected an iteration of 0 or more, got ",
         numbers[1]);
  }
  UpdateScalars scalars;
  scalars.learning_rate = numbers[0];
  scalars.iteration = static_cast<std::int64_t>(numbers[1]);
  scalars.gradient_scale = numbers[2];
  scalars.weight_decay = numbers[3];
  return scalars;
}

std::vector<Tensor> compute_outputs(const ProgramOperation& operation, std::vector<Tensor> inputs) {
  OpCall call{static_cast<OpId>(operation.op), std::move(inputs), operation.specs,
              operation.attributes, SourceLocation()};
  if (call.op == OpId::kDropout && call.inputs.size() == 2) {
    if (auto* const attributes = std::get_if<DropoutAttributes>(&call.attributes)) {
      attributes->key = key_of(call.inputs.back());
      call.inputs.pop_back();
    }
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
  if (!operation.device.empty()) device.emplace(operation.device);
  if (operation.kind == Kind::kCompute) return compute_outputs(operation, std::move(inputs));
  if (operation.kind == Kind::kCreate) {
    create(operation, inputs);
    return {};
  }
  const MutexLock lock(mutex_);
  VariableStorage& storage = find(operation.variable).storage();
  switch (operation.kind) {
    case Kind::kRead:
      return {storage.read()};
    case Kind::kAssign:
      storage.assign_replicated(static_cast<AssignOp>(operation.op), inputs[0]);
      return {};
    case Kind::kScatter:
      storage.scatter(static_cast<ScatterOp>(operation.op),
                      {inputs[0], inputs[1], storage.shape()});
      return {};
    default:
      update(operation, inputs);
      return {};
  }
}

void ProgramExecutor::create(const ProgramOperation& operation, const std::vector<Tensor>& inputs) {
  const TensorSpec& spec = operation.specs.front();
  const auto* const fill = std::get_if<OneHotAttributes>(&operation.attributes);
  if (inputs.empty() && fill == nullptr) {
    fail(ErrorCode::kInvalidArgument, "variable '", operation.variable,
         "': expected an initial value, or a number that fills it");
  }
  const MutexLock lock(mutex_);
  Variable& variable = variables_[operation.variable];
  if (!variable.defined()) {
    const Device device = current_device();
    const Tensor initial =
        inputs.empty() ? Tensor::full(spec.shape, fill->on, spec.dtype, device) : inputs.front();
    variable = Variable(make_local_storage(initial, device, {.name = operation.variable}));
  }
  if (variable.shape() != spec.shape || variable.dtype() != spec.dtype) {
    fail(ErrorCode::kInvalidArgument, "variable '", operation.variable, "' is here as ",
         variable.dtype(), " ", variable.shape(), "; expected ", spec.dtype, " ", spec.shape,
         "; try another name");
  }
}

void ProgramExecutor::update(const ProgramOperation& operation, const std::vector<Tensor>& inputs) {
  std::shared_ptr<const UpdateRule>& rule = rules_[operation.rule];
  if (rule == nullptr) rule = make_update_rule(operation.rule);
  std::vector<Variable> slots;
  for (const std::string& slot : operation.slots) slots.push_back(find(slot));
  if (slots.size() != rule->slots().size()) {
    fail(ErrorCode::kInvalidArgument, rule->name(), ": expected ", rule->slots().size(),
         " slots, got ", slots.size());
  }
  VariableStorage& storage = find(operation.variable).storage();
  const Gradient gradient = inputs.size() == 2
                                ? Gradient(inputs[1])
                                : Gradient(IndexedSlices{inputs[1], inputs[2], storage.shape()});
  storage.update(*rule, slots, gradient, scalars_of(inputs[0]));
}

const Variable& ProgramExecutor::find(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found != variables_.end() && found->second.defined()) return found->second;
  fail(ErrorCode::kNotFound, "there is no variable '", name,
       "' here; expected one that a session has made; was this task started again since?");
}

}  // namespace tutti::internal
