// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/buffer_call.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tutti/cross_device_ops/gpu/device_work.h"
#include "tutti/cross_device_ops/gpu/gpu_elements.h"
#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {
namespace {

/// Copies; from or to float32, if the types differ.
void convert(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.dtype == to.dtype) return copy_buffer(from, to);
  if (from.device.type == DeviceType::kGpu) return cast_on_gpu(from, to);
  if (to.dtype == DType::kFloat32) {
    widen(from.dtype, from.data, to.as<float>().data(), from.count);
  } else {
    narrow(from.as<float>().data(), to.dtype, to.data, to.count);
  }
}

}  // namespace

bool BufferCall::reduces() const { return combines(collective); }

bool BufferCall::is_misaligned() const {
  const auto misaligned = [](const ReplicaBuffer& buffer) {
    return buffer.count > 0 &&
           reinterpret_cast<std::uintptr_t>(buffer.data) % size_of(buffer.dtype) != 0;
  };
  return std::ranges::any_of(inputs, misaligned) || std::ranges::any_of(outputs, misaligned);
}

BufferCopies::BufferCopies(std::span<const ReplicaBuffer> originals, DType dtype, Content content)
    : originals_(originals.begin(), originals.end()) {
  for (const ReplicaBuffer& original : originals_) {
    copies_.push_back(original);
    ReplicaBuffer& copy = copies_.back();
    copy.dtype = dtype;
    if (original.work) {
      copy.data = original.work->scratch(original.device, copy.num_bytes());
    } else {
      const Shape shape{static_cast<std::int64_t>(original.count)};
      storage_.emplace_back(shape, dtype, original.device);
      copy.data = static_cast<std::byte*>(storage_.back().address());
    }
    if (content == Content::kCopied) convert(original, copy);
  }
}

void BufferCopies::write_back() const {
  for (std::size_t r = 0; r < copies_.size(); ++r) convert(copies_[r], originals_[r]);
}

StagedCall::StagedCall(const BufferCall& call, DType dtype)
    : inputs_(call.inputs, dtype, BufferCopies::Content::kCopied),
      outputs_(
          call.outputs, dtype,
          call.inputs.empty() ? BufferCopies::Content::kCopied : BufferCopies::Content::kUndefined),
      call_(call) {
  call_.inputs = inputs_.buffers();
  call_.outputs = outputs_.buffers();
}

BoundCall::BoundCall(const BufferCall& call, DeviceWork& work)
    : inputs_(call.inputs.begin(), call.inputs.end()),
      outputs_(call.outputs.begin(), call.outputs.end()),
      call_(call) {
  for (ReplicaBuffer& input : inputs_) input.work = &work;
  for (ReplicaBuffer& output : outputs_) output.work = &work;
  call_.inputs = inputs_;
  call_.outputs = outputs_;
}

void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.count == 0 || from.data == to.data) return;
  if (to.work) return to.work->copy(from, to);
  if (to.device.type == DeviceType::kGpu) return copy_on_gpu(from, to);
  std::memcpy(to.data, from.data, from.num_bytes());
}

std::vector<Device> devices_of(const BufferCall& call) {
  std::vector<Device> devices;
  for (const ReplicaBuffer& buffer : call.inputs) devices.push_back(buffer.device);
  for (const ReplicaBuffer& buffer : call.outputs) devices.push_back(buffer.device);
  return devices;
}

std::vector<std::size_t> offsets_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> offsets;
  std::size_t sum = 0;
  for (const std::size_t count : counts) {
    offsets.push_back(sum);
    sum += count;
  }
  return offsets;
}

}  // namespace tutti::internal
