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

/// Elements begin .. end - 1 of an axis; negative ones count from its end, and what lies outside
/// counts for nothing, as in Python. Range{} is the whole axis.
struct Range {
  std::optional<std::int64_t> begin = std::nullopt;
  std::optional<std::int64_t> end = std::nullopt;
};

/// What stands in `x[...]` for one axis: a number, which takes the axis away, or a Range.
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
/// Values never change after creation; only Variables change. Threads: all const functions, any
/// thread.
class Tensor {
 public:
  /// Names no array: defined() is false, everything else throws kFailedPrecondition.
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  ~Tensor() = default;
  /// Not to a temporary: `x[0] = 1.0f` does not compile, because x[0] is a tensor of its own, whose
  /// new value would be lost.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  Tensor(float scalar);  // shape [], float32 (implicit, so that `x * 2.0f` reads as it should)
  /// [values.size()], float32: `Tensor t = {1.f, 2.f};`. On current_device().
  Tensor(std::initializer_list<float> values) {  // NOLINT
    *this = from(Shape{static_cast<std::int64_t>(values.size())}, values);
  }

  // Without a device: on current_device(), cpu:0 outside of device scopes.
  static Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32,
                      Device device = current_device());
  static Tensor ones(const Shape& shape, DType dtype = DType::kFloat32,
                     Device device = current_device());
  static Tensor full(const Shape& shape, double value, DType dtype = DType::kFloat32,
                     Device device = current_device());
  /// Copies `values`, row-major. Throws kInvalidArgument unless their number is
  /// shape.num_elements().
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

  /// `x[i]`, `x[-1]` and `x[{i, Range{1, 4}}]`, recorded on tapes like slice(). Throws
  /// kInvalidArgument naming axis and shape for a number that is out of range. Elements are changed
  /// with where(), scatter() or a Variable.
  Tensor operator[](const Index& index) const;
  Tensor operator[](std::initializer_list<Index> indices) const;

  /// reduce_sum(x) and its like: of all elements, or along an axis. Recorded on tapes.
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
  /// `x.reshape({2, -1})`, recorded on tapes.
  Tensor reshape(std::initializer_list<std::int64_t> dims,
                 SourceLocation where = SourceLocation::current()) const;

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  DType dtype() const;
  Device device() const;
  std::int64_t num_elements() const { return shape().num_elements(); }
  int rank() const { return shape().rank(); }
  std::size_t num_bytes() const;

  /// This value on `device`; no copy when already there (virtual CPU devices share the host's
  /// memory, unless one has its own: device_memory.h). Not recorded on tapes: no gradient flows
  /// back through it. From a GPU to the host it waits for the value; to a GPU, and between GPUs
  /// that reach each other, it waits for nothing.
  Tensor to(Device device) const;
  /// The device by its name: x.to("cpu:1"). Throws as Device::parse() does.
  Tensor to(std::string_view device) const { return to(Device::parse(device)); }
  /// The same elements in memory of their own, under a new identity. Not recorded on tapes.
  Tensor copy() const;

  /// The one element, converted; of a GPU's tensor it waits for the value. Throws kInvalidArgument
  /// unless there is exactly one.
  float item() const;
  double item_double() const;
  std::int64_t item_int() const;

  /// The elements, in host memory. Throws kInvalidArgument unless T is the element type,
  /// kFailedPrecondition on a GPU: to(Device{}) copies. Valid while a copy of this tensor lives.
  template <class T>
  std::span<const T> host_span() const {
    require_dtype(dtype_of<T>());
    return {reinterpret_cast<const T*>(data()), static_cast<std::size_t>(num_elements())};
  }
  std::span<const std::byte> bytes() const { return {data(), num_bytes()}; }
  /// Where the elements are in the memory of device(): for kernels and copies. No check.
  const void* address() const;
  /// The memory that the elements are a part of; as long as a reference lives it is not reused.
  const BufferRef& buffer() const;
  /// Copies the elements, converted to double; of a GPU's tensor it waits for them.
  std::vector<double> to_doubles() const;

  /// Shape, type and at most the first 32 elements, for people.
  std::string to_string() const;

  /// Rows [first, first + count) along axis 0, sharing storage. Not recorded on tapes: x[] and
  /// slice() are.
  Tensor detached_rows(std::int64_t first, std::int64_t count) const;
  /// The same elements under another shape of equal size, sharing storage. Not recorded on tapes:
  /// reshape() is.
  Tensor detached_reshape(const Shape& shape) const;
  /// The same value under a new identity: what a tape sees as another tensor.
  Tensor alias() const;

  /// The number by which tapes know this value; copies share it. 0 when undefined.
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

/// A tensor that is being made, or that a variable owns: the only way to write elements. Not shared
/// between threads while it is written.
class MutableTensor {
 public:
  MutableTensor() = default;
  /// Elements are undefined.
  MutableTensor(const Shape& shape, DType dtype, Device device);
  /// In the host's memory, of this allocator.
  MutableTensor(const Shape& shape, DType dtype, BufferAllocator& allocator);

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const;
  /// Elements in host memory. Throws kFailedPrecondition on a GPU.
  std::byte* data() const {
    if (device_.type != DeviceType::kCpu) [[unlikely]]
      fail_not_on_host();
    return buffer_->data();
  }
  /// Where the elements are in the memory of device(): for kernels and copies. No check.
  void* address() const { return buffer_->data(); }
  const BufferRef& buffer() const { return buffer_; }
  template <class T>
  std::span<T> span() const {
    return {reinterpret_cast<T*>(data()), static_cast<std::size_t>(num_elements())};
  }

  /// An immutable view of the same storage. Before the next write the holder must call
  /// make_unique().
  Tensor freeze() const;
  /// Copies the storage first if any Tensor still shares it. After this, span() may be written.
  void make_unique();
  /// Takes over the elements of `value`: shares its storage until the next make_unique() where the
  /// memory is the same, copies from another device. On a GPU they are copied in place when no
  /// Tensor shares the storage.
  void assign(const Tensor& value);
  /// Copies the elements of `value`, which may be on another device, into this storage, whoever
  /// shares it.
  void write(const Tensor& value);
  /// How many tensors and buffers share the storage, this one included.
  int num_sharers() const { return buffer_.num_references(); }

 private:
  [[noreturn]] void fail_not_on_host() const;
  BufferRef buffer_;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
  Device device_;
};

}  // namespace tutti
