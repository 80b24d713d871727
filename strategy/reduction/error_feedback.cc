// Error feedback: the sum of what is sent over many steps is the sum of what was to be sent.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/error_feedback.h"

#include <algorithm>
#include <array>

#include "tensor/cpu/vectorized.h"
#include "tensor/half_conversion.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlock = 2'048;  // elements: with their residuals they fit the first cache

constexpr float kLargestBFloat16 = 3.3895313892515355e38f;
constexpr float kLargestFloat16 = 65504.0f;

/// wanted = gradient + residual; limited = wanted within the type's range, unless it is infinite or
/// NaN.
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

/// residual = wanted - sent, or 0 where that is not finite.
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
         "' cannot be compressed; expected float32 or a type that travels as it is, "
         "got float64; try CommunicationOptions::compression = WireCompression::kNone");
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
