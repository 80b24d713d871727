// Checks of buffers, a checked call of a CrossDeviceOps on them, and the same call on copies.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/buffer_call.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "cross_device_ops/device_work.h"
#include "cross_device_ops/gpu_reductions.h"
#include "tensor/half_conversion.h"

namespace tutti::internal {
namespace {

bool overlap(const ReplicaBuffer& a, const ReplicaBuffer& b) {
  const std::less<const std::byte*> before;
  return a.count > 0 && b.count > 0 && before(a.data, b.data + b.num_bytes()) &&
         before(b.data, a.data + a.num_bytes());
}

void require_one_dtype(std::string_view who, std::string_view kind,
                       std::span<const ReplicaBuffer> buffers, DType expected) {
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    if (buffers[r].dtype != expected) {
      fail(ErrorCode::kInvalidArgument, who, ": buffers of replicas differ; expected ", expected,
           " as in the input of replica 0, got ", buffers[r].dtype, " in the ", kind,
           " of replica ", r);
    }
  }
}

void require_one_kind_of_device(std::string_view who, std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs) {
  const ReplicaBuffer& first = outputs.front();
  for (const auto& [kind, buffers] : {std::pair("input", inputs), std::pair("output", outputs)}) {
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      if (buffers[r].device.type == first.device.type) continue;
      fail(ErrorCode::kInvalidArgument, who, ": buffers on CPU and GPU; expected one kind, got ",
           first.device, " and ", buffers[r].device, " (the ", kind, " of replica ", r,
           "); try Tensor::to() first");
    }
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

void require_mean_is_possible(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean && !is_floating(dtype)) {
    fail(ErrorCode::kInvalidArgument, "reduce: MEAN needs a floating type, got ", dtype,
         "; try SUM, or cast() first");
  }
}

void require_reduction(std::string_view who, ReduceOp op, DType dtype) {
  require_mean_is_possible(op, dtype);
  if (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax) {
    fail(ErrorCode::kInvalidArgument, who, ": bool has MIN and MAX only, got ", op,
         "; try cast() first");
  }
}

void require_root(std::string_view who, int root, std::size_t num_members) {
  if (root >= 0 && static_cast<std::size_t>(root) < num_members) return;
  fail(ErrorCode::kInvalidArgument, who, ": no such root; expected 0 to ", num_members - 1,
       ", got ", root);
}

void require_equal_buffers(std::string_view who, std::span<const ReplicaBuffer> buffers) {
  if (buffers.empty()) fail(ErrorCode::kInvalidArgument, who, ": expected a buffer, got none");
  const ReplicaBuffer& first = buffers.front();
  for (std::size_t r = 1; r < buffers.size(); ++r) {
    if (buffers[r].count != first.count || buffers[r].dtype != first.dtype) {
      fail(ErrorCode::kInvalidArgument, who, ": buffers of replicas differ; expected ", first.count,
           " x ", first.dtype, " as in replica 0, got ", buffers[r].count, " x ", buffers[r].dtype,
           " from replica ", r);
    }
  }
}

void require_pairs(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs) {
  if (inputs.empty()) fail(ErrorCode::kInvalidArgument, who, ": expected a buffer, got none");
  if (inputs.size() != outputs.size()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected an output for each of ", inputs.size(),
         " inputs, got ", outputs.size());
  }
  require_one_dtype(who, "input", inputs, inputs[0].dtype);
  require_one_dtype(who, "output", outputs, inputs[0].dtype);
}

void require_count(std::string_view who, std::string_view what, std::size_t expected,
                   std::size_t got) {
  if (expected == got) return;
  fail(ErrorCode::kInvalidArgument, who, ": counts do not fit together; expected ", expected,
       " elements in ", what, ", got ", got);
}

void require_apart(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs,
                   const std::function<bool(std::size_t input, std::size_t output)>& in_place) {
  require_one_kind_of_device(who, inputs, outputs);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    for (std::size_t other = 0; other < o; ++other) {
      if (!overlap(outputs[o], outputs[other])) continue;
      fail(ErrorCode::kInvalidArgument, who, ": memory overlaps; expected outputs apart, got those",
           " of replicas ", other, " and ", o);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!overlap(inputs[i], outputs[o]) || in_place(i, o)) continue;
      fail(ErrorCode::kInvalidArgument, who, ": memory overlaps; expected apart or in place, got ",
           "the input of replica ", i, " and the output of replica ", o);
    }
  }
}

}  // namespace tutti::internal
