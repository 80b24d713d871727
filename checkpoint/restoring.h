// Taking variables over from a checkpoint: all of them or none.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti::internal {

using TensorMap = std::map<std::string, Tensor>;

/// What VariableStorage::save() gives for all variables. Throws kInvalidArgument when two want the
/// same name.
TensorMap saved_tensors(const std::vector<Variable>& variables);

/// One line for each variable that is missing in `tensors` or has another shape or dtype there.
std::vector<std::string> find_misfits(const std::vector<Variable>& variables,
                                      const TensorMap& tensors);

/// The names in `tensors` that belong to none of `variables`. "<name>/replica_<number>" belongs to
/// variable <name>.
std::vector<std::string> find_unknown(const std::vector<Variable>& variables,
                                      const TensorMap& tensors);

/// Throws kInvalidArgument listing `problems`, if any.
void require_none(const std::vector<std::string>& problems, const std::string& who,
                  const std::string& path);

/// VariableStorage::restore() on all variables.
void restore_all(const std::vector<Variable>& variables, const TensorMap& tensors);

}  // namespace tutti::internal
