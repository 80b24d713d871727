// Creation of tensors: ranges, identity matrices, zeros and ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tutti/tensor/op.h"

namespace tutti {

/// Implement arange() for integers and for floating-point numbers. Throw kInvalidArgument for a
/// step of 0 or too many elements.
Tensor range_of(std::int64_t start, std::int64_t stop, std::int64_t step, DType dtype,
                Device device);
Tensor range_of(double start, double stop, double step, DType dtype, Device device);

/// Type in which arange() computes for arguments of type T.
template <class T>
using RangeNumber = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
/// Default element type of arange(): int64 for integers, float32 for floating-point numbers.
template <class T>
inline constexpr DType kRangeType = std::is_integral_v<T> ? DType::kInt64 : DType::kFloat32;

/// Returns start, start + step, ..., excluding stop: `arange(2, 9, 3)` is 2, 5, 8. Corresponds to
/// tf.range.
template <class T>
requires std::is_arithmetic_v<T> Tensor arange(std::type_identity_t<T> start, T stop,
                                               std::type_identity_t<T> step = 1,
                                               DType dtype = kRangeType<T>,
                                               Device device = current_device()) {
  using Number = RangeNumber<T>;
  return range_of(Number{start}, Number{stop}, Number{step}, dtype, device);
}
/// Overload that starts from 0: `arange(5)`.
template <class T>
requires std::is_arithmetic_v<T> Tensor arange(T stop) { return arange(T{0}, stop); }

/// Returns `count` equally spaced numbers from `start` to `stop`, both included. Corresponds to
/// tf.linspace.
Tensor linspace(double start, double stop, std::int64_t count, DType dtype = DType::kFloat32,
                Device device = current_device());
/// Returns a matrix [rows, columns] with 1 on the diagonal and 0 elsewhere; square if columns is
/// -1. Corresponds to tf.eye.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, DType dtype = DType::kFloat32,
           Device device = current_device());
/// Return a tensor of zeros or ones with the shape, element type and device of x. No gradient flows
/// to x.
Tensor zeros_like(const Operand& x);
Tensor ones_like(const Operand& x);

}  // namespace tutti
