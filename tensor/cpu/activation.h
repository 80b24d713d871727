// Fused activations: what matmul and conv2d apply to their result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>

#include "tutti/tensor/op.h"

namespace tutti::internal {

/// The activation of one value. NaN stays NaN.
template <class T>
T activated(FusedActivation activation, T x) {
  switch (activation) {
    case FusedActivation::kNone:
      return x;
    case FusedActivation::kRelu:
      return x <= T{0} ? T{0} : x;
    case FusedActivation::kSigmoid:
      return T{1} / (T{1} + std::exp(-x));
    case FusedActivation::kTanh:
      return std::tanh(x);
  }
  return x;
}

/// Replaces every element by its activation.
void activate(FusedActivation activation, std::span<float> values);

}  // namespace tutti::internal
