// A checked call of a CrossDeviceOps on buffers, and the same call on copies of its buffers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/buffer_call.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {

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
    storage_.emplace_back(Shape{static_cast<std::int64_t>(original.count)}, dtype, original.device);
    copies_.push_back({storage_.back().data(), original.count, dtype, original.device});
    if (content == Content::kUndefined) continue;
    if (dtype == original.dtype) {
      copy_elements(original.data, copies_.back().data, original.num_bytes());
    } else {
      widen(original.dtype, original.data, copies_.back().as<float>().data(), original.count);
    }
  }
}

void BufferCopies::write_back() const {
  for (std::size_t r = 0; r < copies_.size(); ++r) {
    const ReplicaBuffer& original = originals_[r];
    if (copies_[r].dtype == original.dtype) {
      copy_elements(copies_[r].data, original.data, original.num_bytes());
    } else {
      narrow(copies_[r].as<float>().data(), original.dtype, original.data, original.count);
    }
  }
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

void copy_elements(const std::byte* from, std::byte* to, std::size_t num_bytes) {
  if (num_bytes > 0 && from != to) std::memcpy(to, from, num_bytes);
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
