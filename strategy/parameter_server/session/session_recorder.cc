// Implements SessionRecorder and RemoteValue.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/session_recorder.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "strategy/parameter_server/session/program_executor.h"
#include "tensor/op_checks.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {

// Values.

RemoteValue::~RemoteValue() {
  if (run_ != 0) core_->release(place_->task, run_, number_);
}

std::uint64_t RemoteValue::run() const {
  const MutexLock lock(mutex_);
  return run_;
}

void RemoteValue::set_run(std::uint64_t run) {
  const MutexLock lock(mutex_);
  run_ = run;
}

void RemoteValue::give_up() {
  const MutexLock lock(mutex_);
  is_lost_ = run_ == 0;
}

void RemoteValue::materialize(std::byte* to) {
  const MutexLock lock(mutex_);
  if (is_materialized_) return;
  if (run_ != 0) {
    const Tensor value = core_->fetch(place_->task, run_, number_);
    if (value.shape() != spec_.shape || value.dtype() != spec_.dtype) {
      fail(ErrorCode::kDataLoss, "Session: the value of ", maker_, " arrived as ", value.dtype(),
           " ", value.shape(), "; expected ", spec_.dtype, " ", spec_.shape);
    }
    if (value.num_bytes() > 0) std::memcpy(to, value.bytes().data(), value.num_bytes());
    is_materialized_ = true;
    return;
  }
  if (is_lost_) {
    fail(ErrorCode::kFailedPrecondition, "the value of ", maker_, " on ", place_->task,
         " was not computed, because its step failed; expected a value from a successful step");
  }
  fail(ErrorCode::kFailedPrecondition, "the value of ", maker_,
       " is read on the host within Session::run(), before it is computed on ", place_->task,
       "; expected a step that works only with tensors; return the tensor from the step, "
       "and read it after run()");
}

// Steps.

namespace {

std::uint64_t next_step_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

SessionRecorder::SessionRecorder(std::shared_ptr<SessionCore> core) : core_(std::move(core)) {
  step_.number = next_step_number();
}

SessionRecorder* SessionRecorder::find(const SessionCore& core) {
  auto* const recorder = dynamic_cast<SessionRecorder*>(RemoteRecorder::current());
  return recorder != nullptr && recorder->core_.get() == &core ? recorder : nullptr;
}

void SessionRecorder::begin() {
  if (is_in_step_) {
    fail(ErrorCode::kFailedPrecondition,
         "Session::run: called within a step; expected one step at a time");
  }
  is_in_step_ = true;
}

void SessionRecorder::end() {
  is_in_step_ = false;
  run_step();
}

void SessionRecorder::abandon() {
  is_in_step_ = false;
  const Step dropped = std::exchange(step_, Step{});
  step_.number = next_step_number();
  for (const Made& each : dropped.made) {
    if (const auto value = each.value.lock()) value->give_up();
  }
}

std::shared_ptr<RemoteValue> SessionRecorder::own_value(const Tensor& tensor) const {
  auto value = std::dynamic_pointer_cast<RemoteValue>(lazy_value(tensor));
  return value != nullptr && value->core() == core_ ? value : nullptr;
}

std::shared_ptr<const DeviceSpec> SessionRecorder::device_of(const Tensor& tensor) const {
  const auto value = own_value(tensor);
  if (value == nullptr) return nullptr;
  return {value->place(), &value->place()->spec};
}

/// Records the operation on the device scope's task, or else on the first remote input's task.
std::optional<std::vector<Tensor>> SessionRecorder::run(const OpCall& call) {
  std::shared_ptr<const TaskPlace> place;
  const DeviceScope* const scope = DeviceScope::current();
  if (scope != nullptr && scope->is_remote()) place = core_->place(scope->merged());
  for (std::size_t i = 0; !place && i < call.inputs.size(); ++i) {
    if (const auto value = own_value(call.inputs[i])) place = value->place();
  }
  if (!place) return std::nullopt;
  ProgramOperation operation;
  operation.set_op(static_cast<std::uint32_t>(call.op));
  operation.set_where(who(call.op, call.where));
  put_attributes(call.attributes, operation);
  std::vector<Tensor> inputs = call.inputs;
  if (call.op == OpId::kDropout) {
    inputs.push_back(key_tensor(call.attributes_as<DropoutAttributes>().key));
  }
  return record(place, std::move(operation), inputs, call.outputs);
}

std::vector<Tensor> SessionRecorder::record(const std::shared_ptr<const TaskPlace>& place,
                                            ProgramOperation operation,
                                            std::span<const Tensor> inputs,
                                            const std::vector<TensorSpec>& specs) {
  if (StepRecorder::current() != nullptr) {
    fail(ErrorCode::kUnimplemented, "Session: ", operation.where(), " on ", place->task,
         " in a captured step; expected only operations in this process, because a replay does not "
         "send steps to other tasks; call the function without captured()");
  }
  for (const Tensor& input : inputs) operation.add_inputs(number_of(input));
  operation.set_device(place->device);
  put_specs(specs, operation);
  std::vector<Tensor> outputs;
  for (const TensorSpec& spec : specs) {
    if (operation.kind() == TaskProgram::CREATE) break;  // here, the spec describes the variable
    const ValueNumber number = step_.num_values++;
    operation.add_outputs(number);
    const auto value =
        std::make_shared<RemoteValue>(core_, place, step_.number, number, spec, operation.where());
    step_.made.push_back({place, number, value});
    outputs.push_back(lazy_tensor(spec, Device{}, value));
  }
  if (operation.kind() != TaskProgram::READ) step_.reads.erase(operation.variable());
  for (const std::string& slot : operation.slots()) step_.reads.erase(slot);
  step_.operations.emplace_back(place->task, std::move(operation));
  if (!is_in_step_) run_step();
  return outputs;
}

Tensor SessionRecorder::read(const std::shared_ptr<const TaskPlace>& place, const std::string& name,
                             const TensorSpec& spec) {
  const auto known = step_.reads.find(name);
  if (known != step_.reads.end()) return known->second;
  ProgramOperation operation;
  operation.set_kind(TaskProgram::READ);
  operation.set_variable(name);
  operation.set_where(concat("variable '", name, "'"));
  const Tensor value = record(place, std::move(operation), {}, {spec}).front();
  if (is_in_step_) step_.reads.emplace(name, value);
  return value;
}

Tensor SessionRecorder::scalars(const UpdateScalars& scalars) {
  Tensor tensor = scalars_tensor(scalars);
  const auto numbers = tensor.host_span<double>();
  const std::array<double, 4> key{numbers[0], numbers[1], numbers[2], numbers[3]};
  return is_in_step_ ? step_.scalars.emplace(key, tensor).first->second : tensor;
}

// Inputs of operations.

ValueNumber SessionRecorder::number_of(const Tensor& tensor) {
  const auto value = own_value(tensor);
  if (value == nullptr) return host_argument(tensor);
  if (value->step() == step_.number) return view(value->number(), *value, tensor);
  if (value->run() != 0) return remote_argument(tensor, value);
  return host_argument(tensor);  // throws, because the value was lost
}

ValueNumber SessionRecorder::host_argument(const Tensor& tensor) {
  const Tensor here = tensor.to(Device{});
  const auto key = std::tuple(here.bytes().data(), here.shape().to_string(), here.dtype());
  const auto known = step_.host_arguments.find(key);
  if (known != step_.host_arguments.end()) return known->second;
  const ValueNumber number = step_.num_values++;
  step_.arguments.push_back({number, here, nullptr});
  step_.host_arguments.emplace(key, number);
  return number;
}

ValueNumber SessionRecorder::remote_argument(const Tensor& tensor,
                                             const std::shared_ptr<RemoteValue>& value) {
  const auto known = step_.remote_arguments.find(value.get());
  if (known != step_.remote_arguments.end()) return view(known->second, *value, tensor);
  const ValueNumber number = step_.num_values++;
  step_.arguments.push_back({number, tensor, value});
  step_.remote_arguments.emplace(value.get(), number);
  return view(number, *value, tensor);
}

/// Records a view. On one host, rows and reshapes of a buffer need no operation. Here the task that
/// holds the value executes an operation for the view, so that it sends only the view's elements to
/// other tasks.
ValueNumber SessionRecorder::view(ValueNumber whole, const RemoteValue& value,
                                  const Tensor& tensor) {
  const std::int64_t count = tensor.num_elements();
  const std::int64_t num_elements = value.spec().shape.num_elements();
  const auto first = static_cast<std::int64_t>(offset_in_buffer(tensor) / size_of(tensor.dtype()));
  const auto add = [&](OpId op, const Shape& shape, Attributes attributes) {
    ProgramOperation operation;
    operation.set_op(static_cast<std::uint32_t>(op));
    put_attributes(attributes, operation);
    operation.add_inputs(whole);
    operation.add_outputs(whole = step_.num_values++);
    put_specs({{shape, tensor.dtype()}}, operation);
    operation.set_where(std::string(to_string(op)));
    operation.set_device(value.place()->device);
    step_.made.push_back({value.place(), whole, {}});
    step_.operations.emplace_back(value.place()->task, std::move(operation));
  };
  if (count != num_elements) {
    if (value.spec().shape.rank() != 1) add(OpId::kReshape, {num_elements}, {});
    SliceAttributes slice;
    slice.begin[0] = first;
    add(OpId::kSlice, {count}, slice);
    if (tensor.rank() != 1) add(OpId::kReshape, tensor.shape(), {});
  } else if (tensor.shape() != value.spec().shape) {
    add(OpId::kReshape, tensor.shape(), {});
  }
  return whole;
}

// Division of a step into one program per task, and the values that the programs return.

std::map<Task, TaskPart> SessionRecorder::cut(Step& step) {
  std::map<Task, TaskPart> parts;
  std::vector<const Task*> owners(step.num_values, nullptr);  // nullptr: an argument
  std::vector<const Argument*> arguments(step.num_values, nullptr);
  for (const Argument& each : step.arguments) arguments[each.number] = &each;
  std::set<std::pair<Task, ValueNumber>> known;  // values that a task uses but does not compute
  std::map<ValueNumber, std::uint32_t> num_receivers;
  for (auto& [task, operation] : step.operations) {
    TaskPart& part = parts[task];
    for (const ValueNumber input : operation.inputs()) {
      const Task* const owner = owners[input];
      const bool is_own = owner != nullptr && *owner == task;
      if (is_own || !known.emplace(task, input).second) continue;
      if (owner != nullptr) {
        auto& received = *part.program.add_received();
        received.set_value(input), received.set_job(owner->type), received.set_index(owner->index);
        ++num_receivers[input];
        continue;
      }
      const Argument& argument = *arguments[input];
      part.program.add_arguments(input);
      if (argument.value != nullptr) {
        *part.request.message.mutable_run()->add_arguments()->mutable_address() = value_address(
            argument.value->place()->task, argument.value->run(), argument.value->number());
      } else {
        part.request.add_argument(argument.tensor);
      }
    }
    for (const ValueNumber output : operation.outputs()) owners[output] = &task;
    *part.program.add_operations() = std::move(operation);
  }
  for (Made& each : step.made) {
    each.is_kept = !each.value.expired();
    if (!each.is_kept && !num_receivers.contains(each.number)) continue;
    auto& kept = *parts.at(each.place->task).program.add_kept();
    kept.set_value(each.number);
    if (!each.is_kept) kept.set_num_receivers(num_receivers.at(each.number));
  }
  return parts;
}

void SessionRecorder::run_step() {
  Step step = std::exchange(step_, Step{});
  step_.number = next_step_number();
  step.reads.clear();
  std::map<Task, TaskPart> parts = cut(step);
  if (parts.empty()) return;
  std::uint64_t run = 0;
  try {
    run = core_->run(std::move(parts));
  } catch (...) {
    for (const Made& each : step.made) {
      if (const auto value = each.value.lock()) value->give_up();
    }
    throw;
  }
  for (const Made& each : step.made) {
    if (!each.is_kept) continue;
    if (const auto value = each.value.lock()) {
      value->set_run(run);
    } else {
      core_->release(each.place->task, run, each.number);
    }
  }
}

}  // namespace tutti::internal
