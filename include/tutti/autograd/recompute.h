// Values that a tape computes again instead of keeping what they are made from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/thread_scope.h"

namespace tutti {

/// From inputs to outputs, the same for the same inputs and variables.
using RecomputedFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

/// `function(inputs)`, of which tapes keep the inputs alone: a tape that walks back calls it once
/// more and then walks over what it did. The gradients have the bits that they would have
/// otherwise: those of `inputs`, and of `variables`, all that it reads of which gradients are
/// wanted. The second call runs on the thread of the walk, in the device scope and the
/// AutocastScope of this one; writes of variables are left out there, for they were made.
/// `function` and what it refers to must live until then. tf.recompute_grad.
std::vector<Tensor> recompute_grad(const RecomputedFunction& function,
                                   std::span<const Tensor> inputs,
                                   std::span<const Variable> variables);

namespace internal {

/// While it lives, this thread repeats what was computed before: writes of variables do nothing.
class RepeatScope : ThreadScope<bool> {
 public:
  RepeatScope();
  static bool active();
};

}  // namespace internal
}  // namespace tutti
