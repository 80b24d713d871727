// A fused activation of one value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tutti/tensor/op.h"

namespace tutti::internal {

template <class T>
T activated(FusedActivation activation, T x) {
  switch (activation) {
    case FusedActivation::kNone:
      return x;
    case FusedActivation::kRelu:
      return x > T{0} ? x : T{0};
    case FusedActivation::kSigmoid:
      return T{1} / (T{1} + std::exp(-x));
    case FusedActivation::kTanh:
      return std::tanh(x);
  }
  return x;
}

}  // namespace tutti::internal
