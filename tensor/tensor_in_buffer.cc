// Making a tensor of a part of a buffer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/tensor_in_buffer.h"

#include "tutti/tensor/tensor_impl.h"

namespace tutti {

Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                        DType dtype) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t size = internal::num_bytes(shape, dtype);
  const std::size_t room = buffer ? buffer->size() : 0;
  if (offset % kAlignment != 0 || offset > room || size > room - offset) {
    fail(ErrorCode::kInvalidArgument, "tensor_in_buffer: expected a place for ", size,
         " bytes at a multiple of ", kAlignment, " within a buffer of ", room, " bytes, got byte ",
         offset);
  }
  return view_of_buffer(buffer, offset, shape, dtype);
}

}  // namespace tutti
