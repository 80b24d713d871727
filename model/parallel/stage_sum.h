// The sum of a variable's gradients over micro-batches. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/autograd/gradient_sum.h"
#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {

/// Adds in the order of the calls; dense gradients in place, so that a sum never takes more memory
/// than one of them. One thread.
class StageSum {
 public:
  void add(const Gradient& gradient);
  Gradient total() const;

 private:
  std::optional<VariableComponent> dense_;
  GradientSum sparse_;
};

}  // namespace tutti::internal
