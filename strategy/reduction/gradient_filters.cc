// Finds non-finite values, and implements error feedback, which keeps the sum of the sent values
// equal to the sum of the gradients over many steps.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/gradient_filters.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tensor/cpu/vectorized.h"
#include "tensor/gpu_device.h"
#include "tensor/half_conversion.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

namespace {

template <class T>
inline bool is_finite(T value) {
  const auto wide = static_cast<std::conditional_t<Half<T>, float, T>>(value);
  return wide - wide == 0;
}

template <class T>
constexpr bool kIsFloating = Half<T> || std::is_floating_point_v<T>;

/// Calls `visitor` with the elements if they are floating-point numbers; otherwise returns
/// `otherwise`.
template <class Byte, class Result, class Visitor>
Result visit_elements(DType dtype, Byte* values, std::size_t count, Result otherwise,
                      const Visitor& visitor) {
  return visit_dtype(dtype, [&]<class T>() -> Result {
    if constexpr (kIsFloating<T>) {
      using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
      return visitor(std::span(reinterpret_cast<Element*>(values), count));
    }
    return otherwise;
  });
}

}  // namespace

std::size_t count_non_finite(DType dtype, const std::byte* values, std::size_t count) {
  return visit_elements(dtype, values, count, std::size_t{0}, [](auto elements) {
    // Counts without an early exit, in an integer of an element's width, so that the loop is
    // vectorised.
    using Element = typename decltype(elements)::value_type;
    using Count = std::conditional_t<sizeof(Element) == 8, std::uint64_t, std::uint32_t>;
    Count num_bad = 0;
    const Element* const at = elements.data();
    const std::size_t n = elements.size();
    vectorized([ =, &num_bad ]() __attribute__((always_inline)) {
      Count bad = 0;
      for (std::size_t i = 0; i < n; ++i) bad += is_finite(at[i]) ? 0U : 1U;
      num_bad = bad;
    });
    return static_cast<std::size_t>(num_bad);
  });
}

std::optional<std::size_t> first_non_finite(DType dtype, const std::byte* values,
                                            std::size_t count) {
  using Place = std::optional<std::size_t>;
  return visit_elements(dtype, values, count, Place(), [](auto elements) -> Place {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (!is_finite(elements[i])) return i;
    }
    return std::nullopt;
  });
}

std::vector<std::size_t> indices_of_non_finite(std::span<const Tensor> on_gpu) {
  if (on_gpu.empty()) return {};
  const Device device = on_gpu.front().device();
  const MutableTensor counts({static_cast<std::int64_t>(on_gpu.size())}, DType::kInt64, device);
  GpuDevice::of(device).count_non_finite(on_gpu, counts);
  const Tensor on_host = counts.freeze().to(Device{});
  const auto numbers = on_host.host_span<std::int64_t>();
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > 0) indices.push_back(i);
  }
  return indices;
}

void NonFiniteFindings::note(const NonFiniteValue& value) {
  MutexLock lock(mutex_);
  if (!lowest_ || value < *lowest_) lowest_ = value;
}

std::string describe(const NonFiniteValue& value, const Variable& variable, std::uint64_t step) {
  const bool is_sum = value.replica == NonFiniteValue::kSum;
  return concat("the gradient of Variable '", variable.name(), "' is not finite at flat index ",
                value.index,
                is_sum ? " of the sum, although it is finite on every replica"
                       : concat(" on replica ", value.replica),
                ", in step ", step);
}

namespace {

constexpr std::size_t kBlock = 2'048;  // in elements; a block and its residuals fit in the L1 cache

constexpr float kLargestBFloat16 = 3.3895313892515355e38f;
constexpr float kLargestFloat16 = 65504.0f;

/// Writes gradient + residual to `wanted`. Writes the same sum, clamped to the type's range if it
/// is finite, to `limited`.
void add_residual(float largest, const float* gradient, const float* residual, float* wanted,
                  float* limited, std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = gradient[i] + residual[i];
      const float from_below = value < -largest ? -largest : value;
      const float within = from_below > largest ? largest : from_below;
      wanted[i] = value;
      limited[i] = value - value == 0.0f ? within : value;
    }
  });
}

/// Sets the residual to wanted - sent, or to 0 if the difference is not finite.
void keep_rest(const float* wanted, const float* sent, float* residual, std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      const float rest = wanted[i] - sent[i];
      residual[i] = rest - rest == 0.0f ? rest : 0.0f;
    }
  });
}

}  // namespace

DType wire_type(WireCompression compression) {
  return compression == WireCompression::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
}

void compress_with_feedback(WireCompression compression, const float* gradient, float* residual,
                            float* sent, std::size_t count) {
  const bool is_short_range = compression == WireCompression::kFloat16;
  const DType wire = wire_type(compression);
  const float largest = is_short_range ? kLargestFloat16 : kLargestBFloat16;
  std::array<float, kBlock> wanted, limited;
  std::array<std::byte, kBlock * 2> narrowed;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = std::min(kBlock, count - first);
    add_residual(largest, gradient + first, residual + first, wanted.data(), limited.data(), n);
    narrow(limited.data(), wire, narrowed.data(), n);
    widen(wire, narrowed.data(), sent + first, n);
    keep_rest(wanted.data(), sent + first, residual + first, n);
  }
}

void require_compressible(WireCompression compression, std::span<const Variable> variables) {
  if (compression == WireCompression::kNone) return;
  for (const Variable& variable : variables) {
    if (variable.dtype() != DType::kFloat64) continue;
    fail(ErrorCode::kUnimplemented, "compression ", to_string(compression), ": Variable '",
         variable.name(),
         "' cannot be compressed; expected float32 or a 16-bit type, got float64; use "
         "CommunicationOptions::compression = WireCompression::kNone");
  }
}

Residuals::Residuals(WireCompression compression, const BucketPlan& plan, std::size_t num_replicas)
    : compression_(compression), values_(num_replicas) {
  for (auto& buckets : values_) {
    for (const BucketPlan::Bucket& bucket : plan.buckets) {
      buckets.emplace_back(bucket.dtype == DType::kFloat32 ? bucket.count : 0, 0.0f);
    }
  }
}

}  // namespace tutti::internal
