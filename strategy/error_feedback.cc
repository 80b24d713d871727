// Error feedback: the sum of what is sent over many steps is the sum of what was to be sent.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/error_feedback.h"

#include <algorithm>
#include <array>

#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlock = 2'048;  // elements: with their residuals they fit the first cache

constexpr float kLargestBFloat16 = 3.3895313892515355e38f;
constexpr float kLargestFloat16 = 65504.0f;

bool is_finite(float value) { return value - value == 0.0f; }

/// `wanted` is gradient + residual on entry; `sent` the rounded, limited values on return.
void round_block(DType wire, float largest, const float* wanted, float* sent, std::size_t count) {
  std::array<float, kBlock> limited;
  for (std::size_t i = 0; i < count; ++i) {
    const float within = std::min(std::max(wanted[i], -largest), largest);
    limited[i] = is_finite(wanted[i]) ? within : wanted[i];
  }
  std::array<std::byte, kBlock * 2> narrowed;
  narrow(limited.data(), wire, narrowed.data(), count);
  widen(wire, narrowed.data(), sent, count);
}

}  // namespace

void compress_with_feedback(WireCompression compression, const float* gradient, float* residual,
                            float* sent, std::size_t count) {
  const bool is_short_range = compression == WireCompression::kFloat16;
  const DType wire = is_short_range ? DType::kFloat16 : DType::kBFloat16;
  const float largest = is_short_range ? kLargestFloat16 : kLargestBFloat16;
  std::array<float, kBlock> wanted;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = std::min(kBlock, count - first);
    for (std::size_t i = 0; i < n; ++i) wanted[i] = gradient[first + i] + residual[first + i];
    round_block(wire, largest, wanted.data(), sent + first, n);
    for (std::size_t i = 0; i < n; ++i) {
      const float kept = wanted[i] - sent[first + i];
      residual[first + i] = is_finite(kept) ? kept : 0.0f;
    }
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

Residuals::Residuals(const BucketPlan& plan, std::size_t num_replicas) : values_(num_replicas) {
  for (auto& buckets : values_) {
    for (const BucketPlan::Bucket& bucket : plan.buckets) {
      buckets.emplace_back(bucket.dtype == DType::kFloat32 ? bucket.count : 0, 0.0f);
    }
  }
}

}  // namespace tutti::internal
