// Tensors of CPU devices whose elements are elsewhere until the host asks for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "tutti/tensor/op.h"

namespace tutti {

/// Where the elements of a distant tensor are: on a device that is no Device of this process's own
/// kernels, or nowhere as yet. Any thread.
class DistantValue {
 public:
  virtual ~DistantValue() = default;
  /// Writes the elements to host memory, once; later calls do nothing. Throws kFailedPrecondition
  /// when there are none.
  virtual void bring(std::byte* to) = 0;
};

namespace internal {

/// A tensor on the CPU device `device` with memory of its own, which is filled when the host first
/// reads it.
Tensor distant_tensor(const TensorSpec& spec, Device device, std::shared_ptr<DistantValue> value);
/// What the elements in the tensor's buffer are a copy of; nullptr: the host has made them.
std::shared_ptr<DistantValue> distant_value(const Tensor& tensor);
/// Byte of its buffer at which the tensor begins.
std::size_t offset_in_buffer(const Tensor& tensor);

/// Before the host reads the buffer. Costs a load where there are no distant tensors.
void bring_home(const BufferRef& buffer);
/// Before the host writes all of the buffer, or once it has brought it home: the distant value is
/// no longer that of the buffer.
void forget_distant(const BufferRef& buffer);

}  // namespace internal
}  // namespace tutti
