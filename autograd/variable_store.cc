// Variables by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable_store.h"

#include <algorithm>

#include "core/names.h"

namespace tutti {

Variable VariableStore::get(const std::string& name, const Shape& shape,
                            const Variable::Initializer& initializer, VariableOptions options) {
  const auto found = std::ranges::find_if(
      variables_, [&](const Variable& variable) { return variable.name() == name; });
  if (!reuses_) {
    if (found != variables_.end()) {
      fail(ErrorCode::kAlreadyExists, "VariableStore: variable '", name,
           "' is there already; expected a new name; try reuse_variables() to share it");
    }
    options.name = name;
    Variable variable(initializer, std::move(options));
    if (variable.shape() != shape) {
      fail(ErrorCode::kInvalidArgument, "VariableStore: variable '", name, "': expected shape ",
           shape, ", got ", variable.shape(), " from its initializer");
    }
    variables_.push_back(variable);
    return variable;
  }
  if (found == variables_.end()) {
    fail(ErrorCode::kNotFound, "VariableStore: there is no variable '", name,
         "' to reuse; expected one of [", join(internal::names_of(variables_, &Variable::name)),
         "]; make it before reuse_variables()");
  }
  if (found->shape() != shape) {
    fail(ErrorCode::kInvalidArgument, "VariableStore: variable '", name, "' is reused with shape ",
         shape, "; expected the shape it was made with, ", found->shape());
  }
  return *found;
}

std::vector<Variable> VariableStore::trainable_variables() const {
  std::vector<Variable> trainable;
  std::ranges::copy_if(variables_, std::back_inserter(trainable),
                       [](const Variable& variable) { return variable.trainable(); });
  return trainable;
}

}  // namespace tutti
