// Random tensors: pure functions of a key.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/random_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/names.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using namespace internal;

// Returns the largest value in [low, high), for use when rounding yields `high`.
template <class T>
T below(T low, T high) {
  return low < high ? std::nextafter(high, low) : low;
}

// Returns the largest value below `value`, which must not be 0.
template <Half T>
T predecessor(T value) {
  const bool is_negative = (value.bits & 0x8000) != 0;
  value.bits = static_cast<std::uint16_t>(value.bits + (is_negative ? 1 : -1));
  return value;
}
template <Half T>
T largest_below(double limit) {
  const T nearest(limit);
  constexpr std::uint16_t kSmallestNegative = 0x8001;
  if ((nearest.bits & 0x7fff) == 0) return std::bit_cast<T>(kSmallestNegative);
  return predecessor(nearest);
}

// Calls value(i) for every element, starting with i = `first`. 16-bit elements that would round up
// to `limit` become the largest value below it. Runs on the host, so that equal keys yield
// bit-identical tensors on all devices.
template <class Function>
Tensor filled(const char* who, std::uint64_t first, const Shape& shape, DType dtype, Device device,
              const Function& value, double limit = std::numeric_limits<double>::infinity()) {
  if (const auto traced = traced_tensor({shape, dtype}, device)) return *traced;
  MutableTensor result(shape, dtype, device.type == DeviceType::kCpu ? device : Device{});
  visit_floating(dtype, who, [&]<class T>() {
    std::uint64_t i = first;
    for (T& element : result.span<T>()) {
      element = static_cast<T>(value(i++));
      if constexpr (Half<T>) {
        if (static_cast<double>(element) >= limit) element = largest_below<T>(limit);
      }
    }
  });
  return result.freeze().to(device);
}

// Throws in a captured step, whose replays would reuse the numbers that the host generated during
// capture.
void refuse_in_capture(const char* who) {
  if (!StepRecorder::current()) return;
  fail(ErrorCode::kUnimplemented, who,
       ": random tensors are created on the host, and a captured step does not repeat host work; "
       "use dropout(), or create the tensor outside the step and pass it as an argument");
}

// Returns device memory that holds a new key in each replay of a captured step; nullptr if the key
// stays the same, or if no step is being captured.
const void* key_of_each_step(const Tensor& x, const RandomKey& key) {
  StepRecorder* const recorder = StepRecorder::current();
  if (!recorder || !recorder->is_of_step(key)) return nullptr;
  return recorder->reserve(x.device(), sizeof(RandomKey), [key](std::byte* place) {
    RandomKey now = key;
    now.seed = current_random_context().seed;
    now.a = current_random_context().step;
    std::memcpy(place, &now, sizeof(now));
  });
}

// Redraws a value beyond two standard deviations. Redraw n uses index element + n * 2^48, so that
// the value depends only on the key and the element.
double truncated(const RandomStream& stream, std::uint64_t element) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const double value = stream.normal(element + (attempt << 48));
    if (value >= -2.0 && value <= 2.0) return value;
  }
}

}  // namespace

Tensor random_uniform(const Shape& shape, const RandomKey& key, double low, double high,
                      DType dtype, Device device) {
  return random_uniform_from(0, shape, key, low, high, dtype, device);
}

Tensor random_normal(const Shape& shape, const RandomKey& key, double mean, double stddev,
                     DType dtype, Device device) {
  return random_normal_from(0, shape, key, mean, stddev, dtype, device);
}

Tensor truncated_normal(const Shape& shape, const RandomKey& key, double mean, double stddev,
                        DType dtype, Device device) {
  return truncated_normal_from(0, shape, key, mean, stddev, dtype, device);
}

Tensor random_uniform_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                           double low, double high, DType dtype, Device device) {
  refuse_in_capture("random_uniform");
  internal::require(low <= high, "random_uniform: expected low <= high, got ", low, " and ", high);
  if (const auto traced = traced_tensor({shape, dtype}, device)) return *traced;
  const RandomStream stream(key);
  if (dtype != DType::kFloat32) {
    const auto value = [&](std::uint64_t i) {
      return std::min(low + (high - low) * stream.uniform64(i), below(low, high));
    };
    const double limit = low < high ? high : std::numeric_limits<double>::infinity();
    return filled("random_uniform", first, shape, dtype, device, value, limit);
  }
  MutableTensor result(shape, dtype, device.type == DeviceType::kCpu ? device : Device{});
  const auto values = result.span<float>();
  stream.fill_uniform(first, values);
  const float lowest = static_cast<float>(low);
  const float range = static_cast<float>(high - low);
  const float last = below(lowest, static_cast<float>(high));
  for (float& value : values) value = std::min(lowest + range * value, last);
  return result.freeze().to(device);
}

Tensor random_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                          double mean, double stddev, DType dtype, Device device) {
  refuse_in_capture("random_normal");
  const RandomStream stream(key);
  return filled("random_normal", first, shape, dtype, device,
                [&](std::uint64_t i) { return mean + stddev * stream.normal(i); });
}

Tensor truncated_normal_from(std::uint64_t first, const Shape& shape, const RandomKey& key,
                             double mean, double stddev, DType dtype, Device device) {
  refuse_in_capture("truncated_normal");
  const RandomStream stream(key);
  return filled("truncated_normal", first, shape, dtype, device,
                [&](std::uint64_t i) { return mean + stddev * truncated(stream, i); });
}

Tensor dropout(const Operand& x, double rate, const RandomKey& key) {
  constexpr OpId op = OpId::kDropout;
  require_floating(op, x);
  if (!(rate >= 0.0 && rate < 1.0)) {
    fail_op(op, x.where, "expected a rate in [0, 1), got ", rate);
  }
  return dispatch_unary(op, x, DropoutAttributes{rate, key, key_of_each_step(x.tensor, key)});
}

RandomKey next_random_key() {
  const RandomContext& context = current_random_context();
  // Layers identify their call sites by small numbers; this number differs from all of them.
  const std::uint64_t call = next_call_ordinal(~std::uint64_t{0});
  return {context.seed, kUserPurpose, context.step, context.replica, call};
}

Tensor random_categorical(const Operand& logits, std::int64_t count, const RandomKey& key) {
  constexpr OpId op = OpId::kArgMax;
  require_floating(op, logits);
  if (logits.shape().rank() != 2 || logits.shape()[1] == 0 || count < 0) {
    fail(ErrorCode::kInvalidArgument, who("random_categorical", logits.where), ": expected logits ",
         "[batch, classes] and a count >= 0, got shape ", logits.shape(), " and ", count);
  }
  // Gumbel's trick: argmax(logit - log(-log(u))) yields each class with its probability. In a
  // 16-bit type, u would have only 256 or 2048 values, too few for the tails.
  const DType dtype = size_of(logits.dtype()) == 2 ? DType::kFloat32 : logits.dtype();
  const Shape shape{logits.shape()[0], count, logits.shape()[1]};
  const Tensor u = random_uniform(shape, key, 0.0, 1.0, dtype, logits.tensor.device());
  const Tensor noise = negate(log(negate(log(u))));
  return argmax(Operand(expand_dims(cast(logits, dtype), 1) + noise, logits.where), 2);
}

}  // namespace tutti
