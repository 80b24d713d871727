// Whole arrays of 16-bit floating numbers to float and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// `count` numbers of type bfloat16 or float16 at `from` as float: exact.
void widen(DType from_type, const std::byte* from, float* to, std::size_t count);
/// `count` floats at `from` as bfloat16 or float16, each rounded to nearest, halves to even; the
/// bits are those of BFloat16(value) and Float16(value) (half.h).
void narrow(const float* from, DType to_type, std::byte* to, std::size_t count);

/// Tensors of 16-bit types as float32, all others as they are. Not recorded on tapes.
Tensor widened(const Tensor& tensor);
/// A float32 tensor as one of `dtype`, a 16-bit type. Not recorded on tapes.
Tensor narrowed(const Tensor& tensor, DType dtype);

}  // namespace tutti
