// Support for layers whose computation needs more precision than 16-bit types provide.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/autograd/variable.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::internal {

/// Returns fn(x). If x has a 16-bit type, computes in float32, does not cast the weights, and casts
/// the result to the type of x, as Keras's normalisation layers do.
template <class Fn>
Tensor in_float32(const Tensor& x, const Fn& fn) {
  if (!is_half(x.dtype())) return fn(x);
  const AutocastScope weights_as_they_are(std::nullopt);
  return cast(fn(cast(x, DType::kFloat32)), x.dtype());
}

}  // namespace tutti::internal
