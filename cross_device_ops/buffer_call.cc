// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/buffer_call.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "cross_device_ops/device_work.h"
#include "tensor/half_conversion.h"

namespace tutti::internal {

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

void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.count == 0 || from.data == to.data) return;
  if (to.work) return to.work->copy(from, to);
  if (to.device.type == DeviceType::kGpu) return copy_on_gpu(from, to);
  std::memcpy(to.data, from.data, from.num_bytes());
}

void convert(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.dtype == to.dtype) return copy_buffer(from, to);
  if (from.device.type == DeviceType::kGpu) return cast_on_gpu(from, to);
  // Neither side need be aligned: numbers are converted in memory of this function.
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> floats;
  std::array<std::uint16_t, kBlock> halves;
  auto* const half_bytes = reinterpret_cast<std::byte*>(halves.data());
  for (std::size_t first = 0; first < from.count; first += kBlock) {
    const std::size_t n = std::min(kBlock, from.count - first);
    const std::byte* const in = from.data + first * size_of(from.dtype);
    std::byte* const out = to.data + first * size_of(to.dtype);
    if (is_half(from.dtype)) {
      std::memcpy(half_bytes, in, n * 2);
      widen(from.dtype, half_bytes, floats.data(), n);
      std::memcpy(out, floats.data(), n * 4);
    } else {
      std::memcpy(floats.data(), in, n * 4);
      narrow(floats.data(), to.dtype, half_bytes, n);
      std::memcpy(out, half_bytes, n * 2);
    }
  }
}

void divide(const ReplicaBuffer& buffer, std::size_t divisor) {
  if (buffer.device.type == DeviceType::kGpu) return divide_on_gpu(buffer, divisor);
  visit_arithmetic_floating(buffer.dtype, "MEAN", [&]<class T>() {
    for (std::size_t i = 0; i < buffer.count; ++i) {
      T value;
      std::memcpy(&value, buffer.data + i * sizeof(T), sizeof(T));
      value /= static_cast<T>(divisor);
      std::memcpy(buffer.data + i * sizeof(T), &value, sizeof(T));
    }
  });
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
