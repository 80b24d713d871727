// Sums along the canonical tree on GPUs that read each other's memory, or by their hosts.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_reductions.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cross_device_ops/device_work.h"
#include "tensor/gpu_device.h"
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
    context.run({op, inputs, {&output, 1}, attributes}, workspace);
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
      [&](DeviceContext& context) { context.copy_many(copies, StreamId::kCompute); });
}

ReplicaBuffer buffer_of(const Tensor& tensor) {
  auto* const data = static_cast<std::byte*>(const_cast<void*>(tensor.address()));
  return {data, static_cast<std::size_t>(tensor.num_elements()), tensor.dtype(), tensor.device()};
}

ReplicaBuffer buffer_of(const MutableTensor& tensor) {
  return {static_cast<std::byte*>(tensor.address()),
          static_cast<std::size_t>(tensor.num_elements()), tensor.dtype(), tensor.device()};
}

namespace {

// Below this a second round of launches costs more than the bytes it saves.
constexpr std::size_t kLeastSliceBytes = 16 * 1024;
constexpr std::size_t kSliceAlignment = 64;  // elements

/// Slice `r` of all buffers, one slice per buffer: cut where vectors of elements begin, so the last
/// ones may be empty.
std::vector<ReplicaBuffer> slice_of_all(std::span<const ReplicaBuffer> buffers, std::size_t r) {
  const ReplicaBuffer& first = buffers.front();
  const std::size_t least = kLeastSliceBytes / size_of(first.dtype);
  std::size_t length = (first.count + buffers.size() - 1) / buffers.size();
  length = (std::max(length, least) + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
  const std::size_t begin = std::min(first.count, r * length);
  const std::size_t end = std::min(first.count, begin + length);
  std::vector<ReplicaBuffer> slices(buffers.begin(), buffers.end());
  for (ReplicaBuffer& slice : slices) {
    slice.data += begin * size_of(slice.dtype);
    slice.count = end - begin;
  }
  return slices;
}

/// Slice r of buffer r to all others.
void spread_slices(std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  work.meet();
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<ReplicaBuffer> slices = slice_of_all(buffers, r);
    for (const ReplicaBuffer& slice : slices) work.copy(slices[r], slice);
  }
  work.meet();
}

}  // namespace

void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  work.meet();
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<ReplicaBuffer> slices = slice_of_all(buffers, r);
    work.combine(op, slices, slices[r]);
  }
  spread_slices(buffers);
}

Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where) {
  const MutableTensor result(values[0].shape(), values[0].dtype(), where);
  std::vector<Device> devices{where};
  for (const Tensor& value : values) devices.push_back(value.device());
  DeviceWork work(devices);
  std::vector<ReplicaBuffer> buffers;
  for (const Tensor& value : values) {
    buffers.push_back(buffer_of(value));
    buffers.back().work = &work;
  }
  work.meet();
  work.combine(op, buffers, buffer_of(result));
  work.meet();
  work.join();
  return result.freeze();
}

void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs) {
  DeviceWork& work = *buffers.front().work;
  work.meet();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto members = buffers.subspan(static_cast<std::size_t>(nodes[i].first),
                                         static_cast<std::size_t>(nodes[i].count));
    for (std::size_t r = 0; r < members.size(); ++r) {
      // Slice r of all members is touched by member r alone.
      const std::vector<ReplicaBuffer> slices = slice_of_all(members, r);
      if (members.size() > 1) work.combine(op, slices, slices[r]);
      work.copy_to_host(slices[r], outputs[i] + (slices[r].data - members[r].data));
    }
  }
}

void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const ReplicaBuffer slice = slice_of_all(buffers, r)[r];
    work.copy_from_host(values + (slice.data - buffers[r].data), slice);
  }
  if (buffers.size() > 1) spread_slices(buffers);
}

}  // namespace tutti::internal
