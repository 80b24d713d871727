// A variable that concatenates the rows of several variables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Variable whose value is the concatenation of its parts along the first axis. Assignments and
/// gradients are split by row among the parts; row lookups (embedding_lookup) read only the parts
/// that store the rows. Saved as one tensor, so it can be restored into a variable with a different
/// number of parts. Intended for variables that the program itself creates; variables sharded by
/// ParameterServerStrategy need no ShardedVariable. Corresponds to tf's ShardedVariable.
class ShardedVariable : public Variable {
 public:
  /// Throws kInvalidArgument if there are no parts. Also throws it, naming the part, if a part's
  /// dtype or row shape differs from the first part's, or if the part is a scalar or belongs to
  /// another live ShardedVariable.
  explicit ShardedVariable(std::vector<Variable> variables,
                           const std::string& name = "ShardedVariable");

  /// Returns the parts, in order.
  std::span<const Variable> variables() const;
};

}  // namespace tutti
