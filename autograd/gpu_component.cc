// Writes on variables in the memory of GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gpu_component.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/tensor/device_backend.h"
#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/kernel_table.h"
#include "tutti/tensor/step_recorder.h"

namespace tutti::internal {

namespace {

/// Where kernels find the rule's numbers in each replay of a captured step; nullptr otherwise.
/// Updates with the same numbers share the place, so that they share a launch.
const double* numbers_of_each_step(Device device, const UpdateRule& rule,
                                   const UpdateScalars& scalars) {
  StepRecorder* const recorder = StepRecorder::current();
  if (!recorder || !scalars.live) return nullptr;
  const StepRecorder::Identity identity = {reinterpret_cast<std::uintptr_t>(&rule),
                                           reinterpret_cast<std::uintptr_t>(scalars.live),
                                           std::bit_cast<std::uint64_t>(scalars.weight_decay), 1};
  const auto write = [&rule, live = scalars.live,
                      weight_decay = scalars.weight_decay](std::byte* place) {
    UpdateScalars now = *live;
    now.weight_decay = weight_decay;
    const DeviceRule numbers = *rule.device_rule(now);
    std::memcpy(place, numbers.constants.data(), sizeof(numbers.constants));
  };
  return static_cast<const double*>(
      recorder->reserve(device, sizeof(DeviceRule::constants), write, identity));
}

}  // namespace

void accumulate_on_gpu(VariableMemory& value, AssignOp op, const Tensor& operand) {
  Tensor result;
  {
    OpCall call;
    call.op = op == AssignOp::kAdd ? OpId::kAdd : OpId::kSubtract;
    call.inputs = {value.read(), operand};
    call.outputs = {{value.shape(), value.dtype()}};
    result = compute(call).front();
  }
  value.assign(result);
}

void scatter_on_gpu(VariableMemory& value, ScatterOp op, const IndexedSlices& slices) {
  const Tensor values = slices.values.to(value.device()), rows = slices.indices.to(value.device());
  if (values.num_elements() == 0) return;
  const auto view = [](const auto& tensor) {
    return DeviceTensor{const_cast<void*>(tensor.address()), tensor.shape(), tensor.dtype()};
  };
  const DeviceScatter scatter{op, view(value.writable()), view(rows), view(values)};
  GpuDevice::of(value.device()).with_context([&](DeviceContext& context) {
    context.math().scatter(scatter);
  });
}

bool update_on_gpu(std::span<VariableMemory* const> values, const UpdateRule& rule,
                   const Tensor& gradient, const UpdateScalars& scalars) {
  const std::optional<DeviceRule> kernel = rule.device_rule(scalars);
  const std::size_t most_slots = DeviceUpdateItem::kMaxSlots - (rule.uses_norms() ? 1 : 0);
  if (!kernel || values.size() > most_slots + 1) return false;
  const Device device = values.front()->device();
  const DType dtype = values.front()->dtype();
  std::vector<void*> places;
  for (VariableMemory* value : values) {
    TUTTI_CHECK(value->shape() == gradient.shape() && value->dtype() == dtype, rule.name(),
                ": a slot of shape ", value->shape(), " for a gradient of shape ",
                gradient.shape());
    places.push_back(value->writable().address());
  }
  DeviceUpdateItem item;
  item.weights = places.front();
  std::copy(places.begin() + 1, places.end(), item.slots.begin());
  item.gradient = gradient.address();
  item.count = static_cast<std::size_t>(gradient.num_elements());
  std::vector<BufferRef> buffers = {gradient.buffer()};
  if (rule.uses_norms()) {
    const std::size_t bytes = DeviceUpdateItem::num_sums(item.count) * sizeof(double);
    item.slots.back() = buffers.emplace_back(BufferRef::allocate(bytes, device))->data();
  }
  GpuDevice::of(device).update_later(dtype, *kernel, item, std::move(buffers),
                                     numbers_of_each_step(device, rule, scalars));
  return true;
}

void warn_of_update_by_host(const UpdateRule& rule) {
  log_warning_once(concat("the optimizer '", rule.name(),
                          "' has no kernel on GPUs: each of its updates goes by way of the host, "
                          "which is slow"));
}

}  // namespace tutti::internal
