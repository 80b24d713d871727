// A tensor of bytes that are in a buffer already: what was received, for example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// The elements from byte `offset` of `buffer` on, which is host memory; shares the buffer, whose
/// bytes must not change any more. A writer that takes the tensor over copies it first while
/// anybody else holds the buffer. Throws kInvalidArgument for an offset that is no multiple of 64
/// bytes, and for elements beyond the buffer's end. Any thread.
Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                        DType dtype);

}  // namespace tutti
