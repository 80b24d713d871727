// Kernel tables, and running one call on one of them.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernel_table.h"

#include <algorithm>

#include "tensor/gpu_device.h"
#include "tensor/half_conversion.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"

namespace tutti {
namespace {

/// Whether a call on 16-bit numbers has no kernel for them. Where the first input is not floating
/// it is the labels of a loss, and the numbers follow; or the condition of where(), which moves.
bool needs_float32(const OpCall& call, Kernel kernel) {
  const DType first = call.inputs[0].dtype();
  if (is_half(first)) return !kernel;
  return !is_floating(first) && call.op != OpId::kWhere &&
         std::ranges::any_of(call.inputs, [](const Tensor& x) { return is_half(x.dtype()); });
}

/// Runs a float32 kernel on 16-bit numbers: each result is rounded once.
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
         " on ", call.inputs[0].device(), "; try cast()");
  }
  try {
    if (widens) {
      run_widened(kernel, call, outputs);
    } else {
      kernel({call.inputs, outputs, call.attributes});
    }
  } catch (const Error& error) {  // kernels know no caller
    throw error.with_context(internal::who(call.op, call.where));
  }
}

/// Allocates the outputs and calls `run(call, outputs)` unless there is nothing to compute.
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
  if (StepTracer* const tracer = StepTracer::current()) return tracer->run(call);
  const Device device = call.inputs[0].device();
  if (device.type == DeviceType::kCpu) return run_kernel(cpu_kernels(), call);
  return outputs_of(call, [&](std::span<const MutableTensor> outputs) {
    GpuDevice::of(device).run(call, outputs);
  });
}

std::vector<Tensor> run_kernel(const KernelTable& table, const OpCall& call) {
  TUTTI_CHECK(!call.inputs.empty(), call.op < OpId::kCount ? to_string(call.op) : "?",
              ": a call without inputs");
  return outputs_of(call,
                    [&](std::span<const MutableTensor> outputs) { run(table, call, outputs); });
}

}  // namespace tutti
