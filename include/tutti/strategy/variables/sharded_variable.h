// Several variables as one: the rows of each after those of the one before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Reads as the concatenation of its parts along the first axis; assignments and gradients are cut
/// into their rows, lookups of rows (embedding_lookup) go to the parts that have them. Saved as one
/// tensor, so that any number of parts restores it. tf's ShardedVariable. (Variables that
/// ParameterServerStrategy cuts are single Variables already; this joins those that a program made
/// itself.) A handle, used as the Variable that it is.
class ShardedVariable : public Variable {
 public:
  /// Throws kInvalidArgument for no parts, and naming the first part whose dtype or row shape is
  /// not that of the part before, that is a scalar, or that is a part of another one, which lives.
  explicit ShardedVariable(std::vector<Variable> variables,
                           const std::string& name = "ShardedVariable");

  /// The parts, in order.
  std::span<const Variable> variables() const;
};

}  // namespace tutti
