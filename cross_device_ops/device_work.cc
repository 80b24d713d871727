// Collectives on GPU memory. Sums follow the canonical tree; GPUs read each other's memory, or
// exchange values through host memory.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/device_work.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti::internal {
namespace {

constexpr StreamId kStream = StreamId::kCommunication;

}  // namespace

void DeviceWork::add_devices(std::span<const Device> devices) {
  for (const Device& device : devices) {
    if (std::ranges::find(devices_, device) == devices_.end()) devices_.push_back(device);
  }
}

DeviceWork::DeviceWork(std::span<const Device> devices, std::span<const Event> begin) {
  add_devices(devices);
  for (const Device& device : devices_) {
    for (const Event& event : begin) wait(device, *event);
  }
}

DeviceWork::DeviceWork(std::span<const Device> devices) {
  add_devices(devices);
  for (const Device& device : devices_) {
    with_context(device, [](DeviceContext& context) {
      context.wait(kStream, *context.record(StreamId::kCompute));
    });
  }
}

DeviceWork::~DeviceWork() {
  try {
    join();
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        concat("communication on ", tutti::join(devices_), " failed: ", error.what()));
  }
}

void DeviceWork::barrier() {
  std::vector<Event> marks;
  for (const Device& device : devices_) marks.push_back(mark(device));
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    with_context(devices_[d], [&](DeviceContext& context) {
      for (std::size_t other = 0; other < marks.size(); ++other) {
        if (other != d) context.wait(kStream, *marks[other]);
      }
    });
  }
}

void DeviceWork::join() {
  if (joined_) return;
  joined_ = true;
  for (const Device& device : devices_) {
    with_context(device, [](DeviceContext& context) {
      context.wait(StreamId::kCompute, *context.record(kStream));
    });
  }
}

DeviceWork::Event DeviceWork::mark(Device device) {
  return with_context(device, [](DeviceContext& context) { return context.record(kStream); });
}

void DeviceWork::wait(Device device, const DeviceEvent& event) {
  with_context(device, [&](DeviceContext& context) { context.wait(kStream, event); });
}

std::byte* DeviceWork::scratch(Device device, std::size_t bytes) {
  scratch_.emplace_back(Shape{static_cast<std::int64_t>(bytes)}, DType::kUInt8, device);
  // The allocator reuses memory in compute-stream order.
  with_context(device, [](DeviceContext& context) {
    context.wait(kStream, *context.record(StreamId::kCompute));
  });
  return static_cast<std::byte*>(scratch_.back().address());
}

void DeviceWork::copy(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.count == 0 || from.data == to.data) return;
  const int ordinal = GpuDevice::of(from.device).description().ordinal;
  with_context(to.device, [&](DeviceContext& context) {
    context.copy_from_peer(to.data, from.data, ordinal, from.num_bytes(), kStream);
  });
}

void DeviceWork::copy_to_host(const ReplicaBuffer& from, std::byte* to) {
  if (from.count == 0) return;
  with_context(from.device, [&](DeviceContext& context) {
    context.copy_to_host(to, from.data, from.num_bytes(), kStream);
  });
}

void DeviceWork::copy_from_host(const std::byte* from, const ReplicaBuffer& to) {
  if (to.count == 0) return;
  with_context(to.device, [&](DeviceContext& context) {
    context.copy_to_device(to.data, from, to.num_bytes(), kStream);
  });
}

void DeviceWork::combine(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                         const ReplicaBuffer& output) {
  if (output.count == 0) return;
  std::vector<const void*> readable;
  for (const ReplicaBuffer& input : inputs) {
    ReplicaBuffer near = input;
    if (!reaches(output.device, input.device)) {
      near.data = scratch(output.device, input.num_bytes());
      near.device = output.device;
      copy(input, near);
    }
    readable.push_back(near.data);
  }
  with_context(output.device, [&](DeviceContext& context) {
    context.combine({op, output.dtype, readable, output.data, output.count}, kStream);
  });
}

bool reaches(Device reader, Device owner) {
  const int from = GpuDevice::of(reader).description().ordinal;
  const int to = GpuDevice::of(owner).description().ordinal;
  return from == to || gpu_backend()->can_access_peer(from, to);
}

namespace {

/// Empty workspace: elementwise kernels need none.
class NoWorkspace final : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    fail(ErrorCode::kInternal,
         "collective: expected an elementwise kernel that needs no workspace, got one that needs ",
         bytes, " bytes");
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
  TUTTI_CHECK(from.device == to.device && !from.work,
              "cast_on_gpu: expected elements of one device");
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

// Below this size, a second round of launches costs more time than it saves by moving fewer bytes.
constexpr std::size_t kLeastSliceBytes = 16 * 1024;
constexpr std::size_t kSliceAlignment = 64;  // elements

/// Returns slice `r` of all buffers; there is one slice per buffer. Slices begin at multiples of
/// kSliceAlignment, so the last slices may be empty.
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

/// Copies slice r of buffer r to all other buffers, for each r.
void all_gather_slices(std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  work.barrier();
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<ReplicaBuffer> slices = slice_of_all(buffers, r);
    for (const ReplicaBuffer& slice : slices) work.copy(slices[r], slice);
  }
  work.barrier();
}

}  // namespace

void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  work.barrier();
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<ReplicaBuffer> slices = slice_of_all(buffers, r);
    work.combine(op, slices, slices[r]);
  }
  all_gather_slices(buffers);
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
  work.barrier();
  work.combine(op, buffers, buffer_of(result));
  work.barrier();
  work.join();
  return result.freeze();
}

void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs) {
  DeviceWork& work = *buffers.front().work;
  work.barrier();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto members = buffers.subspan(static_cast<std::size_t>(nodes[i].first),
                                         static_cast<std::size_t>(nodes[i].count));
    for (std::size_t r = 0; r < members.size(); ++r) {
      // Only member r accesses slice r of the buffers.
      const std::vector<ReplicaBuffer> slices = slice_of_all(members, r);
      if (members.size() > 1) work.combine(op, slices, slices[r]);
      work.copy_to_host(slices[r], outputs[i] + (slices[r].data - members[r].data));
    }
  }
}

void broadcast_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers) {
  DeviceWork& work = *buffers.front().work;
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    const ReplicaBuffer slice = slice_of_all(buffers, r)[r];
    work.copy_from_host(values + (slice.data - buffers[r].data), slice);
  }
  if (buffers.size() > 1) all_gather_slices(buffers);
}

}  // namespace tutti::internal

namespace tutti {

PendingReduction::PendingReduction() = default;
PendingReduction::~PendingReduction() = default;  // the DeviceWork destructors join the work
PendingReduction::PendingReduction(PendingReduction&&) noexcept = default;
PendingReduction& PendingReduction::operator=(PendingReduction&&) noexcept = default;

void PendingReduction::join() {
  const auto works = std::exchange(works_, {});
  const auto actions = std::exchange(actions_, {});
  for (const auto& work : works) work->join();
  for (const auto& action : actions) action();
}

void PendingReduction::add(std::unique_ptr<internal::DeviceWork> work) {
  works_.push_back(std::move(work));
}

void PendingReduction::after_join(std::function<void()> action) {
  actions_.push_back(std::move(action));
}

}  // namespace tutti
