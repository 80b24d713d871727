// Variables by name, made once and shared after that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// How several towers share one set of weights: the first get() of a name makes the variable, and
/// after reuse_variables() every later one gives that same variable back. What get_variable() and
/// variable_scope() do in TensorFlow 1. Variables are made in the strategy's scope that is open
/// then. get() of variables that are there: any thread; everything else: one thread.
class VariableStore {
 public:
  /// Makes the variable `name`, or gives the one of that name when variables are reused. `shape` is
  /// that of what `initializer` makes. Throws kAlreadyExists for a name that is taken while
  /// variables are made, kNotFound for one that is not there while they are reused, and
  /// kInvalidArgument naming both shapes where a reused one has another.
  Variable get(const std::string& name, const Shape& shape,
               const Variable::Initializer& initializer, VariableOptions options = {});

  /// From now on variables are shared: get() makes no more.
  void reuse_variables() { reuses_ = true; }
  bool reuses_variables() const { return reuses_; }

  /// In the order in which they were made.
  const std::vector<Variable>& variables() const { return variables_; }
  std::vector<Variable> trainable_variables() const;

 private:
  bool reuses_ = false;
  std::vector<Variable> variables_;
};

}  // namespace tutti
