// The gradient of each operation: OpId -> function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

/// `output_gradients[i]` is undefined where no gradient flows into output i. Returns one Gradient per input (none where there is no path).
/// Computes with public operations, so that an outer tape can differentiate again.
using GradientFunction = std::vector<Gradient> (*)(const OpCall& call,
                                                   std::span<const Tensor> outputs,
                                                   std::span<const Tensor> output_gradients);

/// nullptr for an operation without gradient (comparisons, argmax, one-hot, ...): `differentiable` then tells a constant from
/// an operation whose gradient is not written.
GradientFunction find_gradient(OpId op);
/// Operations whose result is piecewise constant or not floating: they pass no gradient.
bool is_constant_for_gradients(OpId op);

}  // namespace tutti::internal
