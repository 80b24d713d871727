// The floating type of new layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/dtype.h"

namespace tutti {

/// That of layers which this thread builds now: float32 unless a FloatTypeScope says otherwise.
DType current_float_type();

/// While it lives, layers built on this thread have weights and arithmetic of this type: float32 or
/// float64. Throws kUnimplemented for another. keras.backend.set_floatx.
class FloatTypeScope {
 public:
  explicit FloatTypeScope(DType type);
  ~FloatTypeScope();
  FloatTypeScope(const FloatTypeScope&) = delete;
  FloatTypeScope& operator=(const FloatTypeScope&) = delete;

 private:
  DType previous_;
};

}  // namespace tutti
