// In which type variables are read: how layers of mixed policies get their weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/tensor/dtype.h"

namespace tutti {

/// While it lives, floating variables that are read on this thread are cast to `dtype`, unless
/// their VariableOptions::autocast is false; nothing: they are read as they are. Gradients are
/// those of the variable, of its own type. Scopes nest, the innermost counts. Layers open one
/// around call(). keras.src.backend.AutocastScope.
class AutocastScope {
 public:
  explicit AutocastScope(std::optional<DType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  /// That of this thread's innermost scope.
  static std::optional<DType> current();

 private:
  std::optional<DType> previous_;
};

}  // namespace tutti
