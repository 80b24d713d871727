// Fused activations of whole results.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/activation.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {

void activate(FusedActivation activation, std::span<float> values) {
  if (activation == FusedActivation::kNone) return;
  if (activation == FusedActivation::kRelu) {
    vectorized([&]() __attribute__((always_inline)) {
      for (float& value : values) value = value <= 0.0f ? 0.0f : value;
    });
    return;
  }
  for (float& value : values) value = activated(activation, value);
}

}  // namespace tutti::internal
