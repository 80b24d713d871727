// VariableStore: variables that are created once and shared by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Shares one set of weights between towers, as get_variable() and variable_scope() in TensorFlow
/// 1. The first get() of a name creates the variable, in the current strategy scope; after
/// reuse_variables(), every get() returns the existing one. get() of existing variables is
/// thread-safe; other functions are not.
class VariableStore {
 public:
  /// Creates the variable `name`, or returns the existing one if variables are reused. `shape` must
  /// be that of the initializer's result. Throws kAlreadyExists if the name is taken and variables
  /// are not reused, kNotFound if it does not exist and they are, and kInvalidArgument naming both
  /// shapes if a reused one has another shape.
  Variable get(const std::string& name, const Shape& shape,
               const Variable::Initializer& initializer, VariableOptions options = {});

  /// Starts sharing: get() creates no more variables.
  void reuse_variables() { reuses_ = true; }
  bool reuses_variables() const { return reuses_; }

  /// The variables in order of creation.
  const std::vector<Variable>& variables() const { return variables_; }
  std::vector<Variable> trainable_variables() const;

 private:
  bool reuses_ = false;
  std::vector<Variable> variables_;
};

}  // namespace tutti
