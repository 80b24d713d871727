// Repeats recorded calls on a device and compares the results.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "benchmarks/gpu/device_check.h"
#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tensor/kernel_table.h"
#include "tutti/core/text.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::device_check {
namespace {

std::string kernel_name(OpId op, DType dtype) { return concat(to_string(op), " ", dtype); }

bool has_kernel(const Device& device, OpId op, DType dtype) {
  if (device.type == DeviceType::kCpu) return cpu_kernels().find(op, dtype) != nullptr;
  return GpuDevice::of(device).with_context(
      [&](DeviceContext& context) { return context.supports(op, dtype); });
}

std::vector<Tensor> repeat_on(const Device& device, const OpCall& call) {
  OpCall moved = call;
  for (Tensor& input : moved.inputs) input = input.to(device);
  std::vector<Tensor> outputs = dispatch(std::move(moved));
  for (Tensor& output : outputs) {
    if (output.device() != device) {
      fail(ErrorCode::kInternal, "expected a result on ", device, ", got ", output.device());
    }
    output = output.to(Device{});
  }
  return outputs;
}

std::vector<DType> dtypes_of(const RecordedCall& recorded) {
  std::vector<DType> dtypes;
  for (const Tensor& input : recorded.call.inputs) dtypes.push_back(input.dtype());
  for (const Tensor& output : recorded.outputs) dtypes.push_back(output.dtype());
  return dtypes;
}

/// Returns true if large terms may cancel, in which case the rounding error is relative to these
/// terms.
bool may_cancel(OpId op) {
  const OpId ops[] = {OpId::kReduceSum,     OpId::kReduceMean,    OpId::kBiasGrad,
                      OpId::kBatchNormGrad, OpId::kGroupNormGrad, OpId::kLrnGrad,
                      OpId::kSoftmaxGrad,   OpId::kLogSoftmaxGrad};
  return std::ranges::find(ops, op) != std::end(ops);
}

/// Returns true for matrix products and convolutions, whose terms libraries may add in any order.
bool is_product(OpId op) {
  return op == OpId::kMatMul || op == OpId::kConv2d || op == OpId::kConv2dBackwardInput ||
         op == OpId::kConv2dBackwardFilter;
}

double largest_input(const OpCall& call) {
  double largest = 0.0;
  for (const Tensor& input : call.inputs) {
    if (is_floating(input.dtype())) largest = std::max(largest, largest_of(input));
  }
  return largest;
}

std::string compare(const RecordedCall& recorded, const CheckOptions& options) {
  std::vector<Tensor> outputs = repeat_on(options.device, recorded.call);
  if (options.spoil == to_string(recorded.call.op)) outputs[0] = spoiled(outputs[0]);
  const double tolerance =
      tolerance_of(dtypes_of(recorded)) * (is_product(recorded.call.op) ? 4.0 : 1.0);
  const double terms = may_cancel(recorded.call.op) ? largest_input(recorded.call) : 0.0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string found = difference(outputs[i], recorded.outputs[i], tolerance, terms);
    if (!found.empty()) return concat("result ", i, ": ", found);
  }
  return "";
}

std::vector<std::string> kernels_without_call(const Device& device,
                                              const std::set<std::string>& tried) {
  std::vector<std::string> names;
  for (int op = 0; op < static_cast<int>(OpId::kCount); ++op) {
    for (const DType dtype : kAllDTypes) {
      const std::string name = kernel_name(static_cast<OpId>(op), dtype);
      if (has_kernel(device, static_cast<OpId>(op), dtype) && !tried.contains(name)) {
        names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace

Tensor spoiled(const Tensor& tensor) {
  if (tensor.num_elements() == 0) return tensor;
  std::vector<std::byte> bytes(tensor.bytes().begin(), tensor.bytes().end());
  // Flips two bits in the highest byte of the last element, such as an exponent bit, or the value
  // of a bool.
  bytes.back() ^= tensor.dtype() == DType::kBool ? std::byte{1} : std::byte{0x41};
  return Tensor::from_bytes(tensor.shape(), tensor.dtype(), bytes);
}

Findings check_ops(const CheckOptions& options) {
  Findings findings{.check = "ops"};
  std::set<std::string> tried, refused, ops;
  std::map<std::string, std::int64_t> num_calls;
  for (const RecordedCall& recorded : record_calls(options.size, options.only)) {
    const OpCall& call = recorded.call;
    const DType dtype = call.inputs.at(0).dtype();
    const std::string name = kernel_name(call.op, dtype);
    tried.insert(name);
    ops.insert(std::string(to_string(call.op)));
    if (num_calls[name]++ % options.every != 0) continue;
    try {
      findings.add(concat(name, " ", call.inputs[0].shape(), " (", recorded.origin, ")"),
                   compare(recorded, options));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnimplemented) {
        refused.insert(name);
      } else {
        findings.add(concat(name, " (", recorded.origin, ")"), error.what());
      }
    }
  }
  findings.without_kernel.assign(refused.begin(), refused.end());
  if (options.only.empty() && options.size != CallSize::kWide) {
    findings.not_tried = kernels_without_call(options.device, tried);
  }
  findings.detail =
      concat(ops.size(), " operations, ", tried.size(), " pairs of operation and type");
  return findings;
}

}  // namespace tutti::device_check
