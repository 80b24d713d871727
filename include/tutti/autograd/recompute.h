// Recomputation of values in the backward pass, in place of stored intermediate results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/thread_scope.h"

namespace tutti {

/// Function whose outputs depend only on its inputs and on variables.
using RecomputedFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

/// Returns `function(inputs)`. Tapes keep only the inputs: the backward pass calls the function
/// again to differentiate it (tf.recompute_grad). Gradients of `inputs` and `variables` are
/// bit-identical to those without recomputation. `variables` must contain all variables that the
/// function reads and whose gradients are needed. The second call runs on the thread of the
/// backward pass, in the device scope and AutocastScope of the first, and does not repeat writes to
/// variables. `function` and all that it refers to must stay valid until the second call returns.
std::vector<Tensor> recompute_grad(const RecomputedFunction& function,
                                   std::span<const Tensor> inputs,
                                   std::span<const Variable> variables);

namespace internal {

/// Scope in which this thread repeats an earlier computation: writes to variables have no effect.
class RepeatScope : ThreadScope<bool> {
 public:
  RepeatScope();
  static bool active();
};

}  // namespace internal
}  // namespace tutti
