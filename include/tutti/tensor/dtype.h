// Element types of tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <type_traits>

#include "tutti/core/error.h"
#include "tutti/tensor/half.h"

namespace tutti {

/// Element type of a tensor. The values never change: plugins and checkpoint tests depend on them.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kUInt8 = 4,
  kBool = 5,
  kBFloat16 = 6,
  kFloat16 = 7,
};

/// All types, in enumerator order.
inline constexpr DType kAllDTypes[] = {DType::kFloat32,  DType::kFloat64, DType::kInt32,
                                       DType::kInt64,    DType::kUInt8,   DType::kBool,
                                       DType::kBFloat16, DType::kFloat16};

/// Returns the size of one element in bytes.
std::size_t size_of(DType dtype);
/// Returns the name that numpy and tf use: "float32", "int64", ...
std::string_view to_string(DType dtype);
/// Returns the type with this name. Throws kInvalidArgument, listing all names, if there is no such
/// type.
DType parse_dtype(std::string_view name);
/// Returns true for float32, float64, bfloat16 and float16.
bool is_floating(DType dtype);
/// Returns true for bfloat16 and float16. These types only store numbers: operations compute in
/// float32 and round the result once.
bool is_half(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

/// Returns the DType of the C++ type T: float, double, std::int32_t, std::int64_t, std::uint8_t,
/// bool, BFloat16 or Float16.
template <class T>
consteval DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::kFloat32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::kFloat64;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::kInt32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::kInt64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return DType::kUInt8;
  else if constexpr (std::is_same_v<T, bool>)
    return DType::kBool;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::kBFloat16;
  else if constexpr (std::is_same_v<T, Float16>)
    return DType::kFloat16;
}

/// Calls `visitor.template operator()<T>()` with the C++ type of `dtype`:
/// `visit_dtype(x.dtype(), [&]<class T>() { ... })`.
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kFloat32:
      return visitor.template operator()<float>();
    case DType::kFloat64:
      return visitor.template operator()<double>();
    case DType::kInt32:
      return visitor.template operator()<std::int32_t>();
    case DType::kInt64:
      return visitor.template operator()<std::int64_t>();
    case DType::kUInt8:
      return visitor.template operator()<std::uint8_t>();
    case DType::kBool:
      return visitor.template operator()<bool>();
    case DType::kBFloat16:
      return visitor.template operator()<BFloat16>();
    case DType::kFloat16:
      return visitor.template operator()<Float16>();
  }
  fail(ErrorCode::kInternal, "visit_dtype: expected a DType, got ", static_cast<int>(dtype));
}

/// Same as visit_dtype(), but only for the types in which kernels compute, float32 and float64.
/// Throws kInvalidArgument naming `who` for other types.
template <class Visitor>
decltype(auto) visit_arithmetic_floating(DType dtype, std::string_view who, Visitor&& visitor) {
  if (dtype == DType::kFloat32) return visitor.template operator()<float>();
  if (dtype == DType::kFloat64) return visitor.template operator()<double>();
  fail(ErrorCode::kInvalidArgument, who, ": expected float32 or float64, got ", to_string(dtype),
       "; call cast()");
}

/// Same as visit_arithmetic_floating(), but for all floating-point types.
template <class Visitor>
decltype(auto) visit_floating(DType dtype, std::string_view who, Visitor&& visitor) {
  if (dtype == DType::kFloat32) return visitor.template operator()<float>();
  if (dtype == DType::kFloat64) return visitor.template operator()<double>();
  if (dtype == DType::kBFloat16) return visitor.template operator()<BFloat16>();
  if (dtype == DType::kFloat16) return visitor.template operator()<Float16>();
  fail(ErrorCode::kInvalidArgument, who, ": expected a floating-point type, got ", to_string(dtype),
       "; call cast()");
}

}  // namespace tutti
