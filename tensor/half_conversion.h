// Conversion of whole arrays between 16-bit floating-point numbers and float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Converts `count` numbers of type bfloat16 or float16 to float, exactly.
void widen(DType from_type, const std::byte* from, float* to, std::size_t count);
/// Converts `count` floats to bfloat16 or float16, rounded to nearest, ties to even; the bits are
/// those of BFloat16(value) and Float16(value) (half.h).
void narrow(const float* from, DType to_type, std::byte* to, std::size_t count);

/// Returns a tensor of a 16-bit type as float32, and any other tensor unchanged. Not recorded on
/// tapes.
Tensor widened(const Tensor& tensor);
/// Returns a float32 tensor as `dtype`, a 16-bit type. Not recorded on tapes.
Tensor narrowed(const Tensor& tensor, DType dtype);

}  // namespace tutti
