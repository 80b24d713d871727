// Weights of examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// `sample_weight` as a tensor that multiplies `values`: cast to their dtype, dimensions that it
/// lacks at the end added, each dimension equal or 1. A scalar fits always. Throws kInvalidArgument
/// naming `who` and both shapes. The result broadcasts to values.shape().
Tensor fitted_weight(const Tensor& sample_weight, const Tensor& values, std::string_view who);

/// values * fitted_weight(...); `values` when `sample_weight` is undefined.
Tensor weighted(const Tensor& values, const Tensor& sample_weight, std::string_view who);

}  // namespace tutti::internal
