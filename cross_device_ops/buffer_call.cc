// Checks of buffers, a checked call of a CrossDeviceOps on them, and the same call on copies.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/buffer_call.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>

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

}  // namespace

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

namespace {

class BufferChecker {
 public:
  BufferChecker(std::string_view who, const BufferCall& call, bool in_place)
      : who_(who),
        call_(call),
        in_place_(in_place),
        inputs_(in_place ? call.outputs : call.inputs),
        outputs_(call.outputs) {}

  void check() const {
    if (inputs_.empty()) wrong("expected a buffer, got none");
    const Collective collective = call_.collective;
    if (collective != Collective::kAllGather && collective != Collective::kAllToAll) check_equal();
    if (!in_place_ && collective != Collective::kReduce) check_pairs();
    const std::size_t size = inputs_.size();
    if (has_root(collective) && (call_.root < 0 || static_cast<std::size_t>(call_.root) >= size)) {
      wrong("no such root; expected 0 to ", size - 1, ", got ", call_.root);
    }
    if (call_.reduces()) check_reduction();
    if (!in_place_) check_counts();
    check_devices();
    check_overlaps();
  }

 private:
  template <class... Parts>
  [[noreturn, gnu::cold, gnu::noinline]] void wrong(const Parts&... parts) const {
    fail(ErrorCode::kInvalidArgument, who_, ": ", parts...);
  }

  void check_equal() const {
    const ReplicaBuffer& first = inputs_.front();
    for (std::size_t r = 1; r < inputs_.size(); ++r) {
      if (inputs_[r].count == first.count && inputs_[r].dtype == first.dtype) continue;
      wrong("buffers of replicas differ; expected ", first.count, " x ", first.dtype,
            " as in replica 0, got ", inputs_[r].count, " x ", inputs_[r].dtype, " from replica ",
            r);
    }
  }

  void check_pairs() const {
    if (inputs_.size() != outputs_.size()) {
      wrong("expected an output for each of ", inputs_.size(), " inputs, got ", outputs_.size());
    }
    for_each_buffer([&](std::string_view kind, std::size_t r, const ReplicaBuffer& buffer) {
      if (buffer.dtype == inputs_[0].dtype) return;
      wrong("buffers of replicas differ; expected ", inputs_[0].dtype,
            " as in the input of replica 0, got ", buffer.dtype, " in the ", kind, " of replica ",
            r);
    });
  }

  void check_reduction() const {
    const DType dtype = inputs_[0].dtype;
    require_mean_is_possible(call_.op, dtype);
    if (dtype == DType::kBool && call_.op != ReduceOp::kMin && call_.op != ReduceOp::kMax) {
      wrong("bool has MIN and MAX only, got ", call_.op, "; try cast() first");
    }
  }

  void check_counts() const {
    if (call_.collective == Collective::kAllToAll) return check_exchange();
    std::size_t expected = inputs_[0].count;
    if (call_.collective == Collective::kReduceScatter) {
      return check_count("each input, as in all outputs together", sum_of(call_.counts), expected);
    }
    if (call_.collective == Collective::kReduce) {
      if (outputs_[0].dtype != inputs_[0].dtype) {
        wrong("expected an output of ", inputs_[0].dtype, " as in replica 0, got ",
              outputs_[0].dtype);
      }
      return check_count("the output", expected, outputs_[0].count);
    }
    if (call_.collective == Collective::kAllGather) expected = sum_of(call_.counts);
    for (std::size_t r = 0; r < outputs_.size(); ++r) {
      check_count_of("output", r, expected, outputs_[r].count);
    }
  }

  void check_exchange() const {
    const std::size_t v = inputs_.size();
    if (call_.counts.size() != v * v) {
      wrong("expected ", v * v, " counts for ", v, " replicas, or none, got ", call_.counts.size());
    }
    for (std::size_t r = 0; r < v; ++r) {
      std::size_t received = 0;
      for (std::size_t s = 0; s < v; ++s) received += call_.counts[s * v + r];
      check_count_of("input", r, sum_of(call_.counts.subspan(r * v, v)), inputs_[r].count);
      check_count_of("output", r, received, outputs_[r].count);
    }
  }

  static std::size_t sum_of(std::span<const std::size_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }
  void check_count(std::string_view what, std::size_t expected, std::size_t got) const {
    if (expected == got) return;
    wrong("counts do not fit together; expected ", expected, " elements in ", what, ", got ", got);
  }
  void check_count_of(std::string_view kind, std::size_t replica, std::size_t expected,
                      std::size_t got) const {
    if (expected != got) check_count(concat("the ", kind, " of replica ", replica), expected, got);
  }

  void check_devices() const {
    for_each_buffer([&](std::string_view kind, std::size_t r, const ReplicaBuffer& buffer) {
      if (buffer.device.type == outputs_[0].device.type) return;
      wrong("buffers on CPU and GPU; expected one kind, got ", outputs_[0].device, " and ",
            buffer.device, " (the ", kind, " of replica ", r, "); try Tensor::to() first");
    });
  }

  void check_overlaps() const {
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      for (std::size_t other = 0; other < o; ++other) {
        if (!overlap(outputs_[o], outputs_[other])) continue;
        wrong("memory overlaps; expected outputs apart, got those of replicas ", other, " and ", o);
      }
      for (std::size_t i = 0; !in_place_ && i < inputs_.size(); ++i) {
        if (!overlap(inputs_[i], outputs_[o]) || is_its_own_place(i, o)) continue;
        wrong("memory overlaps; expected apart or in place, got the input of replica ", i,
              " and the output of replica ", o);
      }
    }
  }

  bool is_its_own_place(std::size_t input, std::size_t output) const {
    const auto part = [&] {  // of the output's replica in the longer buffer, in bytes
      return sum_of(call_.counts.first(output)) * size_of(inputs_[input].dtype);
    };
    const std::byte* const in = inputs_[input].data;
    const std::byte* const out = outputs_[output].data;
    switch (call_.collective) {
      case Collective::kReduce:
        return input == static_cast<std::size_t>(call_.root) && in == out;
      case Collective::kAllReduce:
        return input == output && in == out;
      case Collective::kAllGather:
        return input == output && in == out + part();
      case Collective::kReduceScatter:
        return input == output && out == in + part();
      default:
        return false;
    }
  }

  template <class Body>
  void for_each_buffer(const Body& body) const {
    for (std::size_t r = 0; !in_place_ && r < inputs_.size(); ++r) body("input", r, inputs_[r]);
    for (std::size_t r = 0; r < outputs_.size(); ++r) body("output", r, outputs_[r]);
  }

  const std::string_view who_;
  const BufferCall& call_;
  const bool in_place_;
  const std::span<const ReplicaBuffer> inputs_, outputs_;
};

}  // namespace

void check_buffers(std::string_view who, const BufferCall& call, bool in_place) {
  BufferChecker(who, call, in_place).check();
}

}  // namespace tutti::internal
