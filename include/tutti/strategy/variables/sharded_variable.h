// One variable made of several, whose rows follow each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Reads as the concatenation of its parts along the first axis. Assignments and gradients are
/// split into the parts' rows; lookups of rows (embedding_lookup) go to the parts that hold them.
/// Saved as one tensor, so any number of parts can restore it. tf's ShardedVariable. (Variables
/// that ParameterServerStrategy shards are single Variables already; this class joins variables
/// that a program made itself.) A handle, used as a Variable.
class ShardedVariable : public Variable {
 public:
  /// Throws kInvalidArgument if there are no parts. Also throws it, naming the part, if a part's
  /// dtype or row shape differs from the previous part's, or if it is a scalar or belongs to
  /// another live ShardedVariable.
  explicit ShardedVariable(std::vector<Variable> variables,
                           const std::string& name = "ShardedVariable");

  /// Returns the parts, in order.
  std::span<const Variable> variables() const;
};

}  // namespace tutti
