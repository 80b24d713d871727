// Averages the gradients of several towers: the synchronisation point of multi-tower programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

/// A gradient and its variable, as in the results of compute_gradients() in TensorFlow 1.
struct GradientAndVariable {
  Gradient gradient;
  Variable variable;
};

/// Returns, for each variable, the mean of the towers' gradients and the first tower's variable
/// (towers share variables). The mean is on the device of the first tower's gradient. Every tower
/// lists the same variables in the same order; sparse gradients stay sparse. Gradients are added in
/// the order of the canonical tree, so the mean is bit-identical to all_reduce(MEAN). The mean is
/// absent if no tower has a gradient for the variable. Throws kInvalidArgument if there are no
/// towers. Also throws it, naming the tower and the variable, if the towers' variables, shapes,
/// types or kinds of gradients differ, or if only some towers have a gradient. Corresponds to
/// average_gradients() in TensorFlow's CIFAR-10 tutorial.
std::vector<GradientAndVariable> average_gradients(
    std::span<const std::vector<GradientAndVariable>> tower_gradients);

/// Overload in which tower t has the weight `tower_weights[t]` divided by the sum of weights. If
/// each weight is the tower's number of rows, the result is the gradient of the mean over the full
/// batch, even if the towers have different numbers of rows. Towers with weight 0 are ignored. With
/// equal weights, the result is bit-identical to that of the function above. Also throws
/// kInvalidArgument unless there is one weight >= 0 per tower and at least one is above 0.
std::vector<GradientAndVariable> average_gradients(
    std::span<const std::vector<GradientAndVariable>> tower_gradients,
    std::span<const double> tower_weights);

/// Returns the gradients alone, in order, for Optimizer::apply_gradients().
std::vector<Gradient> gradients_of(std::span<const GradientAndVariable> pairs);

/// Pairs each gradient with the variable at its index. Throws kInvalidArgument unless there are as
/// many gradients as variables.
std::vector<GradientAndVariable> with_variables(std::span<const Gradient> gradients,
                                                std::span<const Variable> variables);

}  // namespace tutti
