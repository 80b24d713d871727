// What operations take: a tensor and the line that passed it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "tutti/core/source_location.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Made implicitly from a Tensor, a Variable or a number, so that an error can name the caller's
/// line.
struct Operand {
  template <class T>
  requires(std::convertible_to<const T&, Tensor> && !std::same_as<T, Operand>)
      Operand(const T& value, SourceLocation location = SourceLocation::current())  // NOLINT
      : tensor(tensor_of(value)), where(location) {
    if constexpr (std::is_arithmetic_v<T>) {
      is_number = true;
      number = static_cast<double>(value);
    }
  }

  Tensor tensor;
  SourceLocation where;
  /// A plain number takes dtype and device of the operation's other operand; `number` is its full
  /// value.
  bool is_number = false;
  double number = 0.0;

  const Shape& shape() const { return tensor.shape(); }
  DType dtype() const { return tensor.dtype(); }

 private:
  /// A number is put on a device where it is known which: here that would be work for a GPU.
  template <class T>
  static Tensor tensor_of(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return Tensor::from<float>({}, {static_cast<float>(value)}, Device{});
    } else {
      return value;
    }
  }
};

/// "train.cc:41".
std::string to_string(const SourceLocation& where);

}  // namespace tutti
