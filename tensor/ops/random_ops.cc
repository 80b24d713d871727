// Random tensors: pure functions of a key.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/random_ops.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

// Calls value(i) for every element.
template <class Function>
Tensor filled(const char* who, const Shape& shape, DType dtype, Device device,
              const Function& value) {
  MutableTensor result(shape, dtype, device);
  visit_floating(dtype, who, [&]<class T>() {
    std::uint64_t i = 0;
    for (T& element : result.span<T>()) element = static_cast<T>(value(i++));
  });
  return result.freeze();
}

// A draw beyond two standard deviations is repeated with the next of the element's own indices
// (element + n 2^48), so that the value stays a function of the element alone.
double truncated(const RandomStream& stream, std::uint64_t element) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const double value = stream.normal(element + (attempt << 48));
    if (value >= -2.0 && value <= 2.0) return value;
  }
}

}  // namespace

Tensor random_uniform(const Shape& shape, const RandomKey& key, double low, double high,
                      DType dtype, Device device) {
  const RandomStream stream(key);
  if (dtype == DType::kFloat32) {
    MutableTensor result(shape, dtype, device);
    const auto values = result.span<float>();
    stream.fill_uniform(0, values);
    const float range = static_cast<float>(high - low);
    for (float& value : values) value = static_cast<float>(low) + range * value;
    return result.freeze();
  }
  return filled("random_uniform", shape, dtype, device,
                [&](std::uint64_t i) { return low + (high - low) * stream.uniform64(i); });
}

Tensor random_normal(const Shape& shape, const RandomKey& key, double mean, double stddev,
                     DType dtype, Device device) {
  const RandomStream stream(key);
  return filled("random_normal", shape, dtype, device,
                [&](std::uint64_t i) { return mean + stddev * stream.normal(i); });
}

Tensor truncated_normal(const Shape& shape, const RandomKey& key, double mean, double stddev,
                        DType dtype, Device device) {
  const RandomStream stream(key);
  return filled("truncated_normal", shape, dtype, device,
                [&](std::uint64_t i) { return mean + stddev * truncated(stream, i); });
}

Tensor dropout(const Operand& x, double rate, const RandomKey& key) {
  constexpr OpId op = OpId::kDropout;
  defined(op, x);
  require_floating(op, x);
  if (!(rate >= 0.0 && rate < 1.0)) {
    fail_op(op, x.where, "expected a rate in [0, 1), got ", rate);
  }
  return dispatch_unary(op, x, DropoutAttributes{rate, key});
}

}  // namespace tutti
