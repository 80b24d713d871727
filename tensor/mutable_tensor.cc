// Tensors that are being written.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/accelerator.h"
#include "tensor/buffer_allocator.h"
#include "tensor/distant_values.h"
#include "tensor/tensor_impl.h"
#include "tutti/tensor/device_memory.h"

namespace tutti {
namespace internal {

std::size_t num_bytes(const Shape& shape, DType dtype) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(shape.num_elements()), size_of(dtype),
                             &bytes)) {
    fail(ErrorCode::kInvalidArgument, "Tensor: shape ", shape, " of ", dtype, " is too large");
  }
  return bytes;
}

namespace {

/// `value` as T; for bool, whether it is not 0.
template <class T>
T checked_value(double value, std::string_view who) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    // The bounds are powers of two (or 0), so they are exact in double.
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (!(value >= low && value < high) || value != std::trunc(value)) {
      fail(ErrorCode::kInvalidArgument, who, ": expected a number that ", dtype_of<T>(),
           " can hold, got ", value, "; try a floating type or cast()");
    }
  }
  return static_cast<T>(value);
}

}  // namespace

void fill(const MutableTensor& tensor, double value, std::string_view who) {
  visit_dtype(tensor.dtype(), [&]<class T>() {
    const T element = checked_value<T>(value, who);
    if (tensor.device().type == DeviceType::kCpu) {
      std::ranges::fill(tensor.span<T>(), element);
    } else {
      Accelerator::of(tensor.device()).fill(tensor, value);
    }
  });
}

void copy_bytes(Device to_device, void* to, Device from_device, const void* from,
                std::size_t bytes) {
  if (bytes == 0) return;
  const bool to_host = to_device.type == DeviceType::kCpu;
  const bool from_host = from_device.type == DeviceType::kCpu;
  if (to_host && from_host) {
    std::memcpy(to, from, bytes);
  } else if (to_host) {
    Accelerator::of(from_device).copy_to_host(to, from, bytes);
  } else if (from_host) {
    Accelerator::of(to_device).copy_from_host(to, from, bytes);
  } else {
    Accelerator::of(to_device).copy_from_peer(to, from_device, from, bytes);
  }
}

}  // namespace internal

MutableTensor::MutableTensor(const Shape& shape, DType dtype, Device device)
    : shape_(shape), dtype_(dtype), device_(device) {
  require_available(device);
  buffer_ = BufferRef::allocate(internal::num_bytes(shape, dtype), device);
}

MutableTensor::MutableTensor(const Shape& shape, DType dtype, BufferAllocator& allocator)
    : buffer_(allocator.allocate(internal::num_bytes(shape, dtype))),
      shape_(shape),
      dtype_(dtype) {}

void MutableTensor::fail_not_on_host() const {
  fail(ErrorCode::kFailedPrecondition, "MutableTensor: the elements of this tensor, ", dtype_,
       " of shape ", shape_, ", are on ", device_,
       ", which the host cannot write; try writing a tensor of Device{} and to()");
}

std::size_t MutableTensor::num_bytes() const { return internal::num_bytes(shape_, dtype_); }

Tensor MutableTensor::freeze() const {
  TUTTI_CHECK(buffer_, "MutableTensor::freeze: this tensor is undefined");
  auto impl = std::make_shared<Tensor::Impl>();
  impl->buffer = buffer_;
  impl->shape = shape_;
  impl->dtype = dtype_;
  impl->device = device_;
  return Tensor(std::move(impl));
}

void MutableTensor::make_unique() {
  TUTTI_CHECK(buffer_, "MutableTensor::make_unique: this tensor is undefined");
  internal::bring_home(buffer_);
  if (buffer_.unique()) return internal::forget_distant(buffer_);
  BufferRef copy = BufferRef::allocate(num_bytes(), device_);
  internal::copy_bytes(device_, copy->data(), device_, buffer_->data(), num_bytes());
  buffer_ = std::move(copy);
}

void MutableTensor::write(const Tensor& value) {
  if (value.shape() != shape_ || value.dtype() != dtype_) {
    fail(ErrorCode::kInvalidArgument, "MutableTensor::write: expected ", dtype_, " of shape ",
         shape_, ", got ", value.dtype(), " of shape ", value.shape());
  }
  internal::copy_bytes(device_, address(), value.device(), value.address(), num_bytes());
  internal::forget_distant(buffer_);
}

void MutableTensor::assign(const Tensor& value) {
  if (buffer_ && (value.shape() != shape_ || value.dtype() != dtype_)) {
    fail(ErrorCode::kInvalidArgument, "MutableTensor::assign: expected ", dtype_, " of shape ",
         shape_, ", got ", value.dtype(), " of shape ", value.shape());
  }
  if (!buffer_) device_ = value.device();
  shape_ = value.shape();
  dtype_ = value.dtype();
  const Tensor::Impl& source = *value.impl_;
  const bool on_gpu = device_.type != DeviceType::kCpu;
  if (on_gpu && buffer_ && buffer_.unique()) {
    internal::copy_bytes(device_, buffer_->data(), source.device, value.address(), num_bytes());
    return;
  }
  if (internal::share_memory(source.device, device_) && source.offset == 0 &&
      source.buffer->size() == num_bytes()) {
    buffer_ = source.buffer;
    return;
  }
  // A part of a larger buffer: sharing it would keep the whole alive, and writes assume offset 0.
  if (!on_gpu && buffer_ && buffer_.unique()) {
    internal::copy_bytes(device_, buffer_->data(), source.device, value.address(), num_bytes());
    internal::forget_distant(buffer_);
    return;
  }
  BufferRef copy = BufferRef::allocate(num_bytes(), device_);
  internal::copy_bytes(device_, copy->data(), source.device, value.address(), num_bytes());
  buffer_ = std::move(copy);
}

}  // namespace tutti
