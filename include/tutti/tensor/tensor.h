// The tensor: an immutable n-dimensional array on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/source_location.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Elements begin .. end - 1 of an axis. As in Python, negative numbers count from the end of the
/// axis, and bounds outside the axis are clamped. Range{} is the entire axis.
struct Range {
  std::optional<std::int64_t> begin = std::nullopt;
  std::optional<std::int64_t> end = std::nullopt;
};

/// Index of one axis in `x[...]`: a number, which removes the axis, or a Range.
struct Index {
  template <std::integral Number>
  Index(Number number, SourceLocation location = SourceLocation::current())  // NOLINT
      : at(static_cast<std::int64_t>(number)), where(location) {}
  Index(Range elements, SourceLocation location = SourceLocation::current())  // NOLINT
      : range(elements), is_range(true), where(location) {}

  std::int64_t at = 0;
  Range range = {};
  bool is_range = false;
  SourceLocation where;
};

/// An n-dimensional array on one device, dense and row-major. Cheap to copy: copies share storage.
/// Values never change after creation; only Variables change. const functions are thread-safe.
class Tensor {
 public:
  /// Creates an undefined tensor: defined() returns false, and most other functions throw
  /// kFailedPrecondition.
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  ~Tensor() = default;
  /// Cannot be called on temporaries: `x[0] = 1.0f` does not compile, because x[0] is a temporary
  /// tensor, and the assigned value would be lost.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  Tensor(float scalar);  // shape [], float32 (implicit, so that `x * 2.0f` compiles)
  /// Creates a float32 tensor of shape [values.size()] on current_device(): `Tensor t = {1.f,
  /// 2.f};`.
  Tensor(std::initializer_list<float> values) {  // NOLINT
    *this = from(Shape{static_cast<std::int64_t>(values.size())}, values);
  }

  // The default device is current_device(): cpu:0 outside of device scopes.
  static Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32,
                      Device device = current_device());
  static Tensor ones(const Shape& shape, DType dtype = DType::kFloat32,
                     Device device = current_device());
  static Tensor full(const Shape& shape, double value, DType dtype = DType::kFloat32,
                     Device device = current_device());
  /// Creates a tensor from copies of `values`, which are row-major. Throws kInvalidArgument unless
  /// there are shape.num_elements() values.
  template <class T>
  static Tensor from(const Shape& shape, std::span<const T> values,
                     Device device = current_device()) {
    return from_bytes(shape, dtype_of<T>(), std::as_bytes(values), device);
  }
  template <class T>
  static Tensor from(const Shape& shape, std::initializer_list<T> values,
                     Device device = current_device()) {
    return from(shape, std::span<const T>(values.begin(), values.size()), device);
  }
  template <class T>
  static Tensor from(const Shape& shape, const std::vector<T>& values,
                     Device device = current_device()) requires(!std::is_same_v<T, bool>) {
    return from(shape, std::span<const T>(values), device);
  }
  static Tensor from_bytes(const Shape& shape, DType dtype, std::span<const std::byte> bytes,
                           Device device = current_device());
  static Tensor scalar(double value, DType dtype, Device device = current_device()) {
    return full({}, value, dtype, device);
  }

  /// Returns the selected elements: `x[i]`, `x[-1]` or `x[{i, Range{1, 4}}]`. Recorded on tapes
  /// like slice(). Throws kInvalidArgument, naming the axis and the shape, if an index is out of
  /// range. To change elements, use where(), scatter() or a Variable.
  Tensor operator[](const Index& index) const;
  Tensor operator[](std::initializer_list<Index> indices) const;

  /// Same as reduce_sum(), reduce_mean(), reduce_max() and reduce_min(), over all elements or along
  /// an axis. Recorded on tapes.
  Tensor sum(SourceLocation where = SourceLocation::current()) const;
  Tensor sum(int axis, bool keep_dims = false,
             SourceLocation where = SourceLocation::current()) const;
  Tensor mean(SourceLocation where = SourceLocation::current()) const;
  Tensor mean(int axis, bool keep_dims = false,
              SourceLocation where = SourceLocation::current()) const;
  Tensor max(SourceLocation where = SourceLocation::current()) const;
  Tensor max(int axis, bool keep_dims = false,
             SourceLocation where = SourceLocation::current()) const;
  Tensor min(SourceLocation where = SourceLocation::current()) const;
  Tensor min(int axis, bool keep_dims = false,
             SourceLocation where = SourceLocation::current()) const;
  /// Same as reshape(*this, dims) in shape_ops.h. Recorded on tapes.
  Tensor reshape(std::initializer_list<std::int64_t> dims,
                 SourceLocation where = SourceLocation::current()) const;

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  DType dtype() const;
  Device device() const;
  std::int64_t num_elements() const { return shape().num_elements(); }
  int rank() const { return shape().rank(); }
  std::size_t num_bytes() const;

  /// Returns this value on `device`. Does not copy a value that is already on `device`; virtual CPU
  /// devices share the host's memory, except devices with a separate memory (device_memory.h). Not
  /// recorded on tapes: no gradient flows back. Waits for the value only if it moves from a GPU to
  /// another kind of device, or between GPUs without peer access.
  Tensor to(Device device) const;
  /// Overload for a device name: x.to("cpu:1"). Throws the same errors as Device::parse().
  Tensor to(std::string_view device) const { return to(Device::parse(device)); }
  /// Returns a copy of the elements in separate memory, with a new id(). Not recorded on tapes.
  Tensor copy() const;

  /// Return the only element, converted to the result type; wait for it if it is on a GPU. Throw
  /// kInvalidArgument unless there is exactly one element. Collective if the tensor is sharded over
  /// a mesh, like all reads on the host; errors then name the line `where`.
  float item(const SourceLocation& where = SourceLocation::current()) const;
  double item_double(const SourceLocation& where = SourceLocation::current()) const;
  std::int64_t item_int(const SourceLocation& where = SourceLocation::current()) const;

  /// Returns the elements in host memory, valid while a copy of this tensor exists. Throws
  /// kInvalidArgument unless T is the element type, and kFailedPrecondition if the tensor is on a
  /// GPU: see to().
  template <class T>
  std::span<const T> host_span() const {
    require_dtype(dtype_of<T>());
    return {reinterpret_cast<const T*>(data()), static_cast<std::size_t>(num_elements())};
  }
  std::span<const std::byte> bytes() const { return {data(), num_bytes()}; }
  /// Returns the address of the elements in the memory of device(), for kernels and copies.
  const void* address() const;
  /// Returns the buffer that contains the elements; it is not reused while a reference to it
  /// exists.
  const BufferRef& buffer() const;
  /// Returns the elements, converted to double; waits for them if they are on a GPU.
  std::vector<double> to_doubles(const SourceLocation& where = SourceLocation::current()) const;

  /// Returns the shape, the type and at most the first 32 elements as readable text.
  std::string to_string() const;

  /// Returns rows [first, first + count) along axis 0, in this tensor's storage. Not recorded on
  /// tapes, unlike x[] and slice().
  Tensor detached_rows(std::int64_t first, std::int64_t count) const;
  /// Returns a tensor that shares this storage but has another shape with the same number of
  /// elements. Unlike reshape(), not recorded on tapes.
  Tensor detached_reshape(const Shape& shape) const;
  /// Returns the same value with a new id(), which tapes treat as a different tensor.
  Tensor alias() const;

  /// Returns the number that identifies this value on tapes; 0 if undefined. Copies of the Tensor
  /// object share it.
  std::uint64_t id() const;

 private:
  friend class MutableTensor;
  friend Tensor tensor_in_buffer(const BufferRef& buffer, std::size_t offset, const Shape& shape,
                                 DType dtype);
  struct Impl;
  explicit Tensor(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const std::byte* data() const;
  void require_dtype(DType dtype) const;

  std::shared_ptr<const Impl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// Tensor whose elements can be written: a tensor under construction, or the value of a variable.
/// Not thread-safe.
class MutableTensor {
 public:
  MutableTensor() = default;
  /// Creates a tensor with undefined elements.
  MutableTensor(const Shape& shape, DType dtype, Device device);
  /// Creates a tensor in host memory, from `allocator`.
  MutableTensor(const Shape& shape, DType dtype, BufferAllocator& allocator);

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const;
  /// Returns the elements in host memory. Throws kFailedPrecondition if they are on a GPU.
  std::byte* data() const {
    if (device_.type != DeviceType::kCpu) [[unlikely]]
      fail_not_on_host();
    return buffer_->data();
  }
  /// Returns the address of the elements in the memory of device(), for kernels and copies.
  void* address() const { return buffer_->data(); }
  const BufferRef& buffer() const { return buffer_; }
  template <class T>
  std::span<T> span() const {
    return {reinterpret_cast<T*>(data()), static_cast<std::size_t>(num_elements())};
  }

  /// Returns an immutable view of the same storage. Call make_unique() before the next write.
  Tensor freeze() const;
  /// Copies the storage if it is shared, so that span() may be written.
  void make_unique();
  /// Sets the elements to those of `value`. If `value` fills a buffer in the same memory, shares
  /// that buffer until the next make_unique(); otherwise, copies the elements. On a GPU, copies in
  /// place if the storage of this tensor is not shared.
  void assign(const Tensor& value);
  /// Copies the elements of `value`, which may be on any device, into this tensor's storage, even
  /// if that is shared.
  void write(const Tensor& value);
  /// Returns the number of references to the storage, including this tensor's.
  int num_sharers() const { return buffer_.num_references(); }

 private:
  [[noreturn]] void fail_not_on_host() const;
  BufferRef buffer_;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
  Device device_;
};

}  // namespace tutti
