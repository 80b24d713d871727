// Dispatch of operations: observers, transfers between devices, and running a kernel.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/dispatch.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "tensor/gpu_device.h"
#include "tensor/half_conversion.h"
#include "tensor/kernel_table.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/op.h"

namespace tutti {

// Dispatch: views, which need no kernel; kernels; observers.

namespace {

std::vector<OpObserver*>& observers() {
  thread_local std::vector<OpObserver*> stack;
  return stack;
}

void check_devices(const OpCall& call) {
  const Device device = call.inputs[0].device();
  for (const Tensor& input : call.inputs) {
    if (input.device() == device) continue;
    internal::fail_op(call.op, call.where, "inputs are on several devices; expected one, got ",
                      device, " and ", input.device(), "; call to(), or use a DeviceScope");
  }
}

/// Moves `value` to another device and notifies the observers of this thread.
Tensor transferred(const Tensor& value, Device device, const SourceLocation& where) {
  Tensor moved = value.to(device);
  const std::vector<OpObserver*>& stack = observers();
  for (std::size_t i = 0; i < stack.size(); ++i) stack[i]->on_transfer(value, moved, where);
  return moved;
}

void move_inputs(OpCall& call, Device device) {
  for (Tensor& input : call.inputs) {
    if (input.device() != device) input = transferred(input, device, call.where);
  }
}

/// Moves the inputs to the device of the current scope; each replica runs in such a scope. Without
/// a scope, the inputs must already be on one device.
void move_inputs_to_device(OpCall& call) {
  TUTTI_CHECK(call.op < OpId::kCount, "dispatch: expected a call with an operation, got none");
  TUTTI_CHECK(!call.inputs.empty(), to_string(call.op), ": expected at least one input, got none");
  if (const DeviceScope* const scope = DeviceScope::current()) {
    const std::optional<Device> device =
        scope->device(scope->is_remote() ? internal::who(call.op, call.where) : "");
    if (device) return move_inputs(call, *device);
  }
  check_devices(call);
}

/// Returns a view of the rows if the slice selects complete rows; nullopt for other slices.
std::optional<Tensor> sliced_rows(const OpCall& call) {
  const Shape& from = call.inputs[0].shape();
  const Shape& to = call.outputs[0].shape;
  if (from.rank() == 0) return call.inputs[0].alias();
  if (!std::equal(from.begin() + 1, from.end(), to.begin() + 1)) return std::nullopt;
  return call.inputs[0].detached_rows(call.attributes_as<SliceAttributes>().begin[0], to.dim(0));
}

/// Returns the result of an operation that moves no elements: a tensor with a new id that shares
/// the input's storage. Returns nullopt for other operations.
std::optional<Tensor> view(const OpCall& call) {
  switch (call.op) {
    case OpId::kReshape:
    case OpId::kStopGradient:
      return call.inputs[0].detached_reshape(call.outputs[0].shape);
    case OpId::kSlice:
      return sliced_rows(call);
    default:
      return std::nullopt;
  }
}

}  // namespace

void OpObserver::on_transfer(const Tensor&, const Tensor&, const SourceLocation&) {}

Tensor transfer(const Operand& value, Device device) {
  if (!value.tensor.defined()) {
    fail(ErrorCode::kFailedPrecondition, internal::who("transfer", value.where),
         ": the value is undefined (default constructed); assign a value first");
  }
  if (value.tensor.device() == device) return value.tensor;
  return transferred(value.tensor, device, value.where);
}

SeparateObservers::SeparateObservers() { observers_.swap(observers()); }
SeparateObservers::~SeparateObservers() { observers_.swap(observers()); }

ObserverScope::ObserverScope(OpObserver& observer) : observer_(&observer) {
  observers().push_back(&observer);
}

ObserverScope::~ObserverScope() {
  std::vector<OpObserver*>& stack = observers();
  // Finds the last match, because the same observer may be on the stack several times.
  const auto found = std::find(stack.rbegin(), stack.rend(), observer_);
  if (found != stack.rend()) stack.erase(std::next(found).base());
}

namespace internal {
/// Same as compute(), but without the partitioner, which has already declined the call.
std::vector<Tensor> compute_here(const OpCall& call);
}  // namespace internal

std::vector<Tensor> dispatch(OpCall call) {
  std::vector<Tensor> outputs;
  OpPartitioner* const partitioner = OpPartitioner::current();
  std::optional<std::vector<Tensor>> sharded;
  if (partitioner != nullptr) sharded = partitioner->run(call);
  if (sharded) {
    outputs = std::move(*sharded);
  } else if (move_inputs_to_device(call); std::optional<Tensor> result = view(call)) {
    outputs.push_back(std::move(*result));
  } else {
    outputs = internal::compute_here(call);
  }
  if (internal::placement_is_logged()) [[unlikely]]
    internal::log_placement(call, outputs);
  const std::vector<OpObserver*>& stack = observers();
  for (std::size_t i = 0; i < stack.size(); ++i) stack[i]->on_op(call, outputs);
  return outputs;
}

Tensor dispatch_one(OpCall call) { return std::move(dispatch(std::move(call)).front()); }

// The caller's line, for error messages.

std::string to_string(const SourceLocation& where) {
  std::string_view file = where.file_name();
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  return concat(file, ":", where.line());
}

// The log of transfers.

std::string Transfer::to_string() const {
  return concat(from, " -> ", to, ": ", dtype, " ", shape, ", ", bytes, " bytes");
}

std::ostream& operator<<(std::ostream& out, const Transfer& transfer) {
  return out << transfer.to_string();
}

void TransferLog::clear() {
  transfers_.clear();
  bytes_ = 0;
}

void TransferLog::on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) {
  transfers_.push_back(
      {from.device(), to.device(), from.shape(), from.dtype(), from.num_bytes(), where});
  bytes_ += from.num_bytes();
}

}  // namespace tutti

// Kernel tables, and the execution of one call by a table's kernel.

namespace tutti {
namespace {

/// Returns true if the call has 16-bit inputs, but no kernel for them. Among calls with 16-bit
/// inputs, two kinds have a first input that is not floating-point: where(), which only moves
/// elements, and losses, whose inputs are the labels and then the 16-bit logits.
bool needs_float32(const OpCall& call, Kernel kernel) {
  const DType first = call.inputs[0].dtype();
  if (is_half(first)) return !kernel;
  return !is_floating(first) && call.op != OpId::kWhere &&
         std::ranges::any_of(call.inputs, [](const Tensor& x) { return is_half(x.dtype()); });
}

/// Runs a float32 kernel on 16-bit numbers and rounds each result once.
void run_widened(Kernel kernel, const OpCall& call, std::span<const MutableTensor> outputs) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : call.inputs) inputs.push_back(widened(input));
  std::vector<MutableTensor> results;
  for (const MutableTensor& output : outputs) {
    results.push_back(is_half(output.dtype())
                          ? MutableTensor(output.shape(), DType::kFloat32, output.device())
                          : output);
  }
  kernel({inputs, results, call.attributes});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_half(outputs[i].dtype())) continue;
    const std::span<const float> values = results[i].span<float>();
    narrow(values.data(), outputs[i].dtype(), outputs[i].data(), values.size());
  }
}

void run(const KernelTable& table, const OpCall& call, std::span<const MutableTensor> outputs) {
  const DType dtype = call.inputs[0].dtype();
  Kernel kernel = table.find(call.op, dtype);
  const bool widens = needs_float32(call, kernel);
  if (widens && !kernel) kernel = table.find(call.op, DType::kFloat32);
  if (!kernel) {
    fail(ErrorCode::kUnimplemented, internal::who(call.op, call.where), ": no kernel for ", dtype,
         " on ", call.inputs[0].device(), "; call cast()");
  }
  try {
    if (widens) {
      run_widened(kernel, call, outputs);
    } else {
      kernel({call.inputs, outputs, call.attributes});
    }
  } catch (const Error& error) {  // kernels' errors do not name the caller
    throw error.with_context(internal::who(call.op, call.where));
  }
}

/// Allocates the outputs and calls `run(outputs)` unless all are empty.
template <class Run>
std::vector<Tensor> outputs_of(const OpCall& call, const Run& run) {
  const Device device = call.inputs[0].device();
  std::vector<MutableTensor> outputs;
  outputs.reserve(call.outputs.size());
  for (const TensorSpec& spec : call.outputs) outputs.emplace_back(spec.shape, spec.dtype, device);
  const auto has_elements = [](const TensorSpec& spec) { return spec.shape.num_elements() > 0; };
  if (std::ranges::any_of(call.outputs, has_elements)) run(outputs);
  std::vector<Tensor> results;
  results.reserve(outputs.size());
  for (const MutableTensor& output : outputs) results.push_back(output.freeze());
  return results;
}

}  // namespace

std::vector<Tensor> compute(const OpCall& call) {
  if (OpPartitioner* const partitioner = OpPartitioner::current()) {
    if (auto outputs = partitioner->run(call)) return std::move(*outputs);
  }
  return internal::compute_here(call);
}

std::vector<Tensor> internal::compute_here(const OpCall& call) {
  if (StepTracer* const tracer = StepTracer::current()) return tracer->run(call);
  if (RemoteRecorder* const recorder = RemoteRecorder::current()) {
    if (auto outputs = recorder->run(call)) return std::move(*outputs);
  }
  const Device device = call.inputs[0].device();
  if (device.type == DeviceType::kCpu) return run_kernel(cpu_kernels(), call);
  return outputs_of(call, [&](std::span<const MutableTensor> outputs) {
    GpuDevice::of(device).run(call, outputs);
  });
}

std::vector<Tensor> run_kernel(const KernelTable& table, const OpCall& call) {
  TUTTI_CHECK(!call.inputs.empty(), call.op < OpId::kCount ? to_string(call.op) : "?",
              ": expected at least one input, got none");
  return outputs_of(call,
                    [&](std::span<const MutableTensor> outputs) { run(table, call, outputs); });
}

}  // namespace tutti
