// Names and sizes of element types.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/dtype.h"

namespace tutti {

std::size_t size_of(DType dtype) {
  return visit_dtype(dtype, []<class T>() { return sizeof(T); });
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  fail(ErrorCode::kInternal, "DType: no such value: ", static_cast<int>(dtype));
}

DType parse_dtype(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (name == to_string(dtype)) return dtype;
  }
  fail(ErrorCode::kInvalidArgument, "parse_dtype: unknown element type; expected one of ",
       join(kAllDTypes), ", got '", name, "'");
}

bool is_half(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_half(dtype);
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

}  // namespace tutti
