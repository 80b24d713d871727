// One collective on the memory of GPUs: its place among the other work of their streams.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/device_work.h"

#include <algorithm>
#include <exception>
#include <utility>

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
    log(LogLevel::kError, concat("communication on ", tutti::join(devices_), ": ", error.what()));
  }
}

void DeviceWork::meet() {
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
  // Memory goes from hand to hand in the order of the compute stream.
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

}  // namespace tutti::internal

namespace tutti {

PendingReduction::PendingReduction() = default;
PendingReduction::~PendingReduction() = default;  // the works join
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
