// What is done to elements in a GPU's memory around a collective, by its compute stream.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_elements.h"

#include <array>

#include "tensor/gpu/gpu_device.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

/// For elementwise kernels, which need none.
class NoWorkspace final : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    fail(ErrorCode::kInternal, "collective: an elementwise kernel asks for ", bytes, " bytes");
  }
};

DeviceTensor device_tensor(const ReplicaBuffer& buffer) {
  return {buffer.data, {static_cast<std::int64_t>(buffer.count)}, buffer.dtype};
}

void run(Device device, OpId op, std::span<const DeviceTensor> inputs, const DeviceTensor& output,
         const Attributes& attributes) {
  NoWorkspace workspace;
  GpuDevice::of(device).with_context([&](DeviceContext& context) {
    context.math().run({op, inputs, {&output, 1}, attributes}, workspace);
  });
}

}  // namespace

void copy_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.device != to.device) {
    return GpuDevice::of(to.device).copy_from_peer(to.data, from.device, from.data,
                                                   from.num_bytes());
  }
  const DeviceCopy copy{to.data, from.data, from.num_bytes()};
  copy_many_on_gpu(to.device, {&copy, 1});
}

void cast_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  TUTTI_CHECK(from.device == to.device && !from.work, "cast_on_gpu: elements of one device");
  if (from.count == 0) return;
  const DeviceTensor input = device_tensor(from);
  run(from.device, OpId::kCast, {&input, 1}, device_tensor(to), CastAttributes{to.dtype});
}

void divide_on_gpu(const ReplicaBuffer& buffer, std::size_t divisor) {
  if (buffer.count == 0) return;
  const MutableTensor number({}, buffer.dtype, buffer.device);
  GpuDevice::of(buffer.device).fill(number, static_cast<double>(divisor));
  const std::array<DeviceTensor, 2> inputs{device_tensor(buffer),
                                           DeviceTensor{number.address(), {}, buffer.dtype}};
  run(buffer.device, OpId::kDivide, inputs, inputs[0], {});
}

void copy_many_on_gpu(Device device, std::span<const DeviceCopy> copies) {
  if (copies.empty()) return;
  GpuDevice::of(device).with_context(
      [&](DeviceContext& context) { context.math().copy_many(copies, StreamId::kCompute); });
}

ReplicaBuffer buffer_of(const Tensor& tensor) {
  auto* const data = static_cast<std::byte*>(const_cast<void*>(tensor.address()));
  return {data, static_cast<std::size_t>(tensor.num_elements()), tensor.dtype(), tensor.device()};
}

ReplicaBuffer buffer_of(const MutableTensor& tensor) {
  return {static_cast<std::byte*>(tensor.address()),
          static_cast<std::size_t>(tensor.num_elements()), tensor.dtype(), tensor.device()};
}

}  // namespace tutti::internal
