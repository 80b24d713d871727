// Kernel tables, and running one call on one of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/kernel_table.h"

#include <algorithm>

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

void run(const KernelTable& table, const OpCall& call, std::span<const MutableTensor> outputs) {
  const DType dtype = call.inputs[0].dtype();
  const Kernel kernel = table.find(call.op, dtype);
  if (!kernel) {
    fail(ErrorCode::kUnimplemented, internal::who(call.op, call.where), ": no kernel for ", dtype,
         " on ", call.inputs[0].device(), "; try cast()");
  }
  try {
    kernel({call.inputs, outputs, call.attributes});
  } catch (const Error& error) {  // kernels know no caller
    throw error.with_context(internal::who(call.op, call.where));
  }
}

}  // namespace

void KernelTable::set(OpId op, DType dtype, Kernel kernel) {
  kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)] = kernel;
}

void KernelTable::set(OpId op, std::span<const DType> dtypes, Kernel kernel) {
  for (DType dtype : dtypes) set(op, dtype, kernel);
}

Kernel KernelTable::find(OpId op, DType dtype) const {
  return kernels_[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
}

std::vector<Tensor> run_kernel(const KernelTable& table, const OpCall& call) {
  TUTTI_CHECK(!call.inputs.empty(), call.op < OpId::kCount ? to_string(call.op) : "?",
              ": a call without inputs");
  const Device device = call.inputs[0].device();
  std::vector<MutableTensor> outputs;
  outputs.reserve(call.outputs.size());
  for (const TensorSpec& spec : call.outputs) outputs.emplace_back(spec.shape, spec.dtype, device);
  const auto has_elements = [](const TensorSpec& spec) { return spec.shape.num_elements() > 0; };
  if (std::ranges::any_of(call.outputs, has_elements)) run(table, call, outputs);
  std::vector<Tensor> results;
  results.reserve(outputs.size());
  for (const MutableTensor& output : outputs) results.push_back(output.freeze());
  return results;
}

}  // namespace tutti
