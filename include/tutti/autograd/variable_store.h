// VariableStore: variables that are created once and shared by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Set of weights that several towers share, as with get_variable() and variable_scope() in
/// TensorFlow 1. The first get() of a name creates the variable, in the current strategy scope;
/// after reuse_variables(), every get() returns the existing one. get() of existing variables is
/// thread-safe; no other function is.
class VariableStore {
 public:
  /// Creates the variable `name`, or returns the existing one if variables are reused. `shape` must
  /// be the shape of the initializer's result. Before reuse_variables(), throws kAlreadyExists if
  /// the variable exists. After it, throws kNotFound if the variable does not exist, and
  /// kInvalidArgument, naming both shapes, if the variable has a different shape.
  Variable get(const std::string& name, const Shape& shape,
               const Variable::Initializer& initializer, VariableOptions options = {});

  /// Starts reuse: from now on, get() only returns existing variables and creates no new ones.
  void reuse_variables() { reuses_ = true; }
  bool reuses_variables() const { return reuses_; }

  /// Returns the variables in order of creation.
  const std::vector<Variable>& variables() const { return variables_; }
  std::vector<Variable> trainable_variables() const;

 private:
  bool reuses_ = false;
  std::vector<Variable> variables_;
};

}  // namespace tutti
