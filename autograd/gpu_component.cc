// Writes on variables in the memory of GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gpu_component.h"

#include "tutti/core/logging.h"
#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/kernel_table.h"

namespace tutti::internal {

void accumulate_on_gpu(MutableTensor& value, AssignOp op, const Tensor& operand) {
  Tensor result;
  {
    OpCall call;
    call.op = op == AssignOp::kAdd ? OpId::kAdd : OpId::kSubtract;
    call.inputs = {value.freeze(), operand};
    call.outputs = {{value.shape(), value.dtype()}};
    result = compute(call).front();
  }
  value.assign(result);
}

bool update_on_gpu(std::span<MutableTensor* const> values, const UpdateRule& rule,
                   const Tensor& gradient, const UpdateScalars& scalars) {
  const MutableTensor& weights = *values.front();
  const std::optional<DeviceRule> kernel = rule.device_rule(scalars);
  if (!kernel || values.size() > DeviceUpdateItem::kMaxSlots + 1) return false;
  DeviceUpdateItem item;
  for (MutableTensor* value : values) {
    TUTTI_CHECK(value->shape() == weights.shape() && value->dtype() == weights.dtype(), rule.name(),
                ": a slot of shape ", value->shape(), " for weights of shape ", weights.shape());
    value->make_unique();
  }
  for (std::size_t s = 1; s < values.size(); ++s) item.slots[s - 1] = values[s]->address();
  item.weights = weights.address();
  item.gradient = gradient.address();
  item.count = static_cast<std::size_t>(gradient.num_elements());
  GpuDevice& device = GpuDevice::of(weights.device());
  device.update_later(weights.dtype(), *kernel, item, {gradient.buffer()});
  return true;
}

void warn_of_update_by_host(const UpdateRule& rule) {
  log_warning_once(concat("the optimizer '", rule.name(),
                          "' has no kernel on GPUs: each of its updates goes by way of the host, "
                          "which is slow"));
}

}  // namespace tutti::internal
