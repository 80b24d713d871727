// The floating type of new layers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/float_type.h"

#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

DType& float_type() {
  thread_local DType type = DType::kFloat32;
  return type;
}

}  // namespace

DType current_float_type() { return float_type(); }

FloatTypeScope::FloatTypeScope(DType type) : previous_(float_type()) {
  if (type != DType::kFloat32 && type != DType::kFloat64) {
    fail(ErrorCode::kUnimplemented, "FloatTypeScope: expected float32 or float64, got ", type,
         "; weights are kept in at least 32 bits");
  }
  float_type() = type;
}

FloatTypeScope::~FloatTypeScope() { float_type() = previous_; }

}  // namespace tutti
