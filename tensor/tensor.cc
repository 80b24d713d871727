// Tensors: creation, views, access to elements, and printing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/call_site.h"
#include "core/names.h"
#include "tensor/buffer_allocator.h"
#include "tensor/gpu_device.h"
#include "tensor/step_hooks.h"
#include "tensor/tensor_impl.h"
#include "tutti/tensor/device_memory.h"

namespace tutti {

// Creating, viewing and reading tensors.

namespace {

Tensor filled(const Shape& shape, double value, DType dtype, Device device) {
  if (const auto traced = internal::traced_tensor({shape, dtype}, device)) return *traced;
  MutableTensor tensor(shape, dtype, device);
  internal::fill(tensor, value, "Tensor::full");
  return tensor.freeze();
}

/// Returns the only element of `tensor` as To.
template <class To>
To single_element(const Tensor& tensor, const char* who) {
  internal::require(tensor.num_elements() == 1, who, ": expected exactly one element, got shape ",
                    tensor.shape(), "; call to_doubles() or host_span()");
  const Tensor on_host = tensor.to(Device{});
  return visit_dtype(tensor.dtype(), [&]<class T>() {
    const T value = on_host.host_span<T>()[0];
    if constexpr (Half<T>) {
      return static_cast<To>(static_cast<float>(value));
    } else {
      return static_cast<To>(value);
    }
  });
}

}  // namespace

/// Each thread reserves many numbers at once, because taking each number from the shared counter
/// would cause contention.
std::uint64_t Tensor::Impl::next_id() {
  constexpr std::uint64_t kAtOnce = 1024;
  static std::atomic<std::uint64_t> taken{0};
  // a multiple of kAtOnce (e.g. 0) means that no reserved number is left
  thread_local std::uint64_t last = 0;
  if (last % kAtOnce == 0) last = taken.fetch_add(kAtOnce, std::memory_order_relaxed);
  return ++last;
}

Tensor::Tensor(float scalar) {
  const Device device = current_device();
  MutableTensor tensor({}, DType::kFloat32, device);
  if (device.type == DeviceType::kCpu) [[likely]] {
    tensor.span<float>()[0] = scalar;
  } else {
    internal::fill(tensor, scalar, "Tensor");
  }
  *this = tensor.freeze();
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  if (const auto traced = internal::traced_tensor({shape, dtype}, device)) return *traced;
  MutableTensor tensor(shape, dtype, device);
  if (device.type == DeviceType::kCpu) {
    std::memset(tensor.data(), 0, tensor.num_bytes());
  } else {
    GpuDevice::of(device).clear(tensor.address(), tensor.num_bytes());
  }
  return tensor.freeze();
}

Tensor Tensor::ones(const Shape& shape, DType dtype, Device device) {
  return filled(shape, 1.0, dtype, device);
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  return filled(shape, value, dtype, device);
}

Tensor Tensor::from_bytes(const Shape& shape, DType dtype, std::span<const std::byte> bytes,
                          Device device) {
  MutableTensor tensor(shape, dtype, device);
  if (bytes.size() != tensor.num_bytes()) {
    fail(ErrorCode::kInvalidArgument, "Tensor::from: expected ", shape.num_elements(),
         " elements of ", dtype, " for shape ", shape, ", got ", bytes.size() / size_of(dtype));
  }
  internal::copy_bytes(device, tensor.address(), Device{}, bytes.data(), bytes.size());
  return tensor.freeze();
}

const Shape& Tensor::shape() const {
  if (!impl_) [[unlikely]] {
    fail(ErrorCode::kFailedPrecondition,
         "Tensor: this tensor is undefined (default constructed); assign a value first");
  }
  return impl_->shape;
}

DType Tensor::dtype() const { return shape(), impl_->dtype; }
Device Tensor::device() const { return shape(), impl_->device; }
std::size_t Tensor::num_bytes() const { return internal::num_bytes(shape(), impl_->dtype); }
std::uint64_t Tensor::id() const { return impl_ ? impl_->id : 0; }
const void* Tensor::address() const {
  shape();
  internal::materialize(impl_->buffer);
  return impl_->buffer->data() + impl_->offset;
}
const BufferRef& Tensor::buffer() const { return shape(), impl_->buffer; }

const std::byte* Tensor::data() const {
  if (device().type != DeviceType::kCpu) [[unlikely]] {
    fail(ErrorCode::kFailedPrecondition, "Tensor: the elements of this tensor, ", impl_->dtype,
         " of shape ", impl_->shape, ", are on ", impl_->device,
         ", which the host cannot read; call to(Device{})");
  }
  internal::materialize(impl_->buffer);
  return impl_->buffer->data() + impl_->offset;
}

void Tensor::require_dtype(DType dtype) const {
  if (this->dtype() != dtype) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, "Tensor::host_span: expected ", dtype, ", got a tensor of ",
         impl_->dtype, " with shape ", impl_->shape, "; call cast()");
  }
}

Tensor Tensor::to(Device device) const {
  const Device from = this->device();
  if (from == device) return *this;
  require_available(device);
  if (const auto traced = internal::traced_tensor({shape(), dtype()}, device, this)) return *traced;
  const bool to_host = device.type == DeviceType::kCpu;
  if (!to_host && from.type == DeviceType::kCpu) {
    auto impl = std::make_shared<Impl>();
    impl->buffer = GpuDevice::of(device).upload(address(), num_bytes());
    impl->shape = shape();
    impl->dtype = dtype();
    impl->device = device;
    return Tensor(std::move(impl));
  }
  if (!internal::share_memory(from, device)) {
    MutableTensor copy(shape(), dtype(), device);
    internal::copy_bytes(device, copy.address(), from, address(), num_bytes());
    return copy.freeze();
  }
  auto impl = std::make_shared<Impl>(*impl_);
  impl->device = device;
  impl->id = Impl::next_id();
  return Tensor(std::move(impl));
}

Tensor Tensor::copy() const {
  if (const auto traced = internal::traced_tensor({shape(), dtype()}, device(), this)) {
    return *traced;
  }
  MutableTensor copy(shape(), dtype(), device());
  copy.write(*this);
  return copy.freeze();
}

Tensor Tensor::alias() const { return detached_reshape(shape()); }

Tensor Tensor::detached_reshape(const Shape& shape) const {
  if (shape.num_elements() != num_elements()) {
    fail(ErrorCode::kInvalidArgument, "Tensor::detached_reshape: ", this->shape(), " has ",
         num_elements(), " elements; expected a shape with the same number, got ", shape, " with ",
         shape.num_elements());
  }
  auto impl = std::make_shared<Impl>(*impl_);
  impl->shape = shape;
  impl->id = Impl::next_id();
  return Tensor(std::move(impl));
}

Tensor Tensor::detached_rows(std::int64_t first, std::int64_t count) const {
  const std::int64_t num_rows = rank() == 0 ? 0 : shape().dim(0);
  internal::require(rank() != 0 && first >= 0 && count >= 0 && first <= num_rows - count,
                    "Tensor::detached_rows: expected rows within 0 .. ", num_rows, " of shape ",
                    shape(), ", got first ", first, " and count ", count);
  auto impl = std::make_shared<Impl>(*impl_);
  impl->shape = shape().with_dim(0, count);
  if (num_rows > 0)
    impl->offset +=
        num_bytes() / static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(first);
  impl->id = Impl::next_id();
  return Tensor(std::move(impl));
}

float Tensor::item(const SourceLocation& where) const {
  const CallSite site(where);
  return single_element<float>(*this, "Tensor::item");
}
double Tensor::item_double(const SourceLocation& where) const {
  const CallSite site(where);
  return single_element<double>(*this, "Tensor::item_double");
}
std::int64_t Tensor::item_int(const SourceLocation& where) const {
  const CallSite site(where);
  return single_element<std::int64_t>(*this, "Tensor::item_int");
}

std::vector<double> Tensor::to_doubles(const SourceLocation& where) const {
  const CallSite site(where);
  const Tensor on_host = to(Device{});
  return visit_dtype(dtype(), [&]<class T>() {
    const std::span<const T> elements = on_host.host_span<T>();
    std::vector<double> values(elements.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(elements[i]);
    return values;
  });
}

// Making a tensor from part of a buffer.

Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                        DType dtype) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t size = internal::num_bytes(shape, dtype);
  const std::size_t room = buffer ? buffer->size() : 0;
  internal::require(offset % kAlignment == 0 && offset <= room && size <= room - offset,
                    "tensor_in_buffer: expected ", size,
                    " bytes at an offset that is a multiple of ", kAlignment,
                    ", within a buffer of ", room, " bytes, got offset ", offset);
  auto impl = std::make_shared<Tensor::Impl>();
  impl->buffer = buffer;
  impl->offset = offset;
  impl->shape = shape;
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

// Printing of tensors.

namespace {

constexpr std::int64_t kMaxPrinted = 32;

void append_element(std::ostringstream& out, bool value) { out << (value ? "true" : "false"); }
void append_element(std::ostringstream& out, std::uint8_t value) { out << int{value}; }
template <class T>
void append_element(std::ostringstream& out, T value) {
  out << value;
}

/// Writes at most kMaxPrinted of a tensor's elements, in nested brackets.
template <class T>
class NestedWriter {
 public:
  NestedWriter(std::ostringstream& out, const Shape& shape, std::span<const T> elements)
      : out_(out), shape_(shape), elements_(elements) {}

  void write(int axis) {
    if (axis == shape_.rank()) {
      append_element(out_, elements_[static_cast<std::size_t>(next_++)]);
      return;
    }
    out_ << "[";
    for (std::int64_t i = 0; i < shape_.dim(axis); ++i) {
      if (i > 0) out_ << ", ";
      if (next_ == kMaxPrinted) {
        out_ << "...";
        break;
      }
      write(axis + 1);
    }
    out_ << "]";
  }

 private:
  std::ostringstream& out_;
  const Shape& shape_;
  std::span<const T> elements_;
  std::int64_t next_ = 0;
};

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "Tensor(undefined)";
  std::ostringstream out;
  out << "Tensor(shape=" << shape() << ", dtype=" << dtype() << ", device=" << device() << ", ";
  const Tensor on_host = to(Device{});
  visit_dtype(dtype(),
              [&]<class T>() { NestedWriter<T>(out, shape(), on_host.host_span<T>()).write(0); });
  out << ")";
  return std::move(out).str();
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.to_string();
}

namespace internal {

// Writing tensors: fills, copies, MutableTensor.

std::size_t num_bytes(const Shape& shape, DType dtype) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(shape.num_elements()), size_of(dtype),
                             &bytes)) {
    fail(ErrorCode::kInvalidArgument, "Tensor: shape ", shape, " of ", dtype, " is too large");
  }
  return bytes;
}

namespace {

/// Converts `value` to T (bool: value != 0). Throws if T is an integer type that cannot hold it.
template <class T>
T checked_value(double value, std::string_view who) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    // The bounds are powers of two (or 0), so they are exact in double.
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = std::ldexp(1.0, std::numeric_limits<T>::digits);
    internal::require(value >= low && value < high && value == std::trunc(value), who,
                      ": expected a number that ", dtype_of<T>(), " can hold, got ", value,
                      "; try a floating-point type or cast()");
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
      GpuDevice::of(tensor.device()).fill(tensor, value);
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
    GpuDevice::of(from_device).copy_to_host(to, from, bytes);
  } else if (from_host) {
    GpuDevice::of(to_device).copy_from_host(to, from, bytes);
  } else {
    GpuDevice::of(to_device).copy_from_peer(to, from_device, from, bytes);
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
       ", which the host cannot write to; fill a tensor on Device{} and call to()");
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
  internal::materialize(buffer_);
  if (buffer_.unique()) return internal::forget_lazy_value(buffer_);
  BufferRef copy = BufferRef::allocate(num_bytes(), device_);
  internal::copy_bytes(device_, copy->data(), device_, buffer_->data(), num_bytes());
  buffer_ = std::move(copy);
}

void MutableTensor::write(const Tensor& value) {
  internal::require(value.shape() == shape_ && value.dtype() == dtype_,
                    "MutableTensor::write: expected ", dtype_, " of shape ", shape_, ", got ",
                    value.dtype(), " of shape ", value.shape());
  internal::copy_bytes(device_, address(), value.device(), value.address(), num_bytes());
  internal::forget_lazy_value(buffer_);
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
  // A part of a larger buffer is copied: sharing it would keep the whole buffer alive, and writes
  // assume offset 0.
  if (!on_gpu && buffer_ && buffer_.unique()) {
    internal::copy_bytes(device_, buffer_->data(), source.device, value.address(), num_bytes());
    internal::forget_lazy_value(buffer_);
    return;
  }
  BufferRef copy = BufferRef::allocate(num_bytes(), device_);
  internal::copy_bytes(device_, copy->data(), source.device, value.address(), num_bytes());
  buffer_ = std::move(copy);
}

}  // namespace tutti
