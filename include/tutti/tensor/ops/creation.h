// Tensors made of a rule: ranges, the identity, the same number everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "tutti/tensor/op.h"

namespace tutti {

/// start, start + step, ... before stop: int64 for whole numbers, else float32. Throws
/// kInvalidArgument for a step of 0. tf.range.
Tensor range_of(std::int64_t start, std::int64_t stop, std::int64_t step, DType dtype,
                Device device);
Tensor range_of(double start, double stop, double step, DType dtype, Device device);

/// In what arange() counts for numbers of type T, and the elements that it then makes.
template <class T>
using RangeNumber = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
/// int64 for whole numbers, float32 for others.
template <class T>
inline constexpr DType kRangeType = std::is_integral_v<T> ? DType::kInt64 : DType::kFloat32;

/// `arange(2, 9, 3)`: start, start + step, ... before stop. tf.range.
template <class T>
requires std::is_arithmetic_v<T> Tensor arange(std::type_identity_t<T> start, T stop,
                                               std::type_identity_t<T> step = 1,
                                               DType dtype = kRangeType<T>,
                                               Device device = current_device()) {
  using Number = RangeNumber<T>;
  return range_of(Number{start}, Number{stop}, Number{step}, dtype, device);
}
/// `arange(5)`: from 0.
template <class T>
requires std::is_arithmetic_v<T> Tensor arange(T stop) { return arange(T{0}, stop); }

/// `count` numbers at equal distances from `start` to `stop`, both included. tf.linspace.
Tensor linspace(double start, double stop, std::int64_t count, DType dtype = DType::kFloat32,
                Device device = current_device());
/// [rows, columns] with 1 on the diagonal; as many columns as rows without a number. tf.eye.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, DType dtype = DType::kFloat32,
           Device device = current_device());
/// Shape, element type and device of x; no gradient flows.
Tensor zeros_like(const Operand& x);
Tensor ones_like(const Operand& x);

}  // namespace tutti
