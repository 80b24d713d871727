// The synchronisation point of programs with towers: the mean of their gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

/// What compute_gradients() gave for one variable in TensorFlow 1.
struct GradientAndVariable {
  Gradient gradient;
  Variable variable;
};

/// For each variable the mean of the towers' gradients, on the device of the first tower's, beside
/// the first tower's variable (towers share theirs). Every tower lists the same variables in the
/// same order; sparse gradients stay sparse. Sums are added along the canonical tree: the bits of
/// all_reduce(MEAN). A variable that no tower has a gradient for has none. Throws kInvalidArgument
/// naming tower and variable for no towers, lists that differ, a gradient that only some towers
/// have, and shapes, types or kinds that differ. average_gradients() of the CIFAR-10 tutorial.
std::vector<GradientAndVariable> average_gradients(
    std::span<const std::vector<GradientAndVariable>> tower_gradients);

/// The same where tower t counts for `tower_weights[t]` of their sum: with the rows of each tower's
/// part it is the gradient of the mean over the whole batch, whatever the parts (the mean of means
/// is not). Towers of weight 0 are left out; with equal weights the bits are those of the mean.
/// Throws kInvalidArgument also for weights that are not one per tower, 0 or more, one of them
/// above 0.
std::vector<GradientAndVariable> average_gradients(
    std::span<const std::vector<GradientAndVariable>> tower_gradients,
    std::span<const double> tower_weights);

/// The gradients alone, in order: what Optimizer::apply_gradients() takes.
std::vector<Gradient> gradients_of(std::span<const GradientAndVariable> pairs);

/// Pairs each gradient with the variable in its place; kInvalidArgument for different numbers.
std::vector<GradientAndVariable> with_variables(std::span<const Gradient> gradients,
                                                std::span<const Variable> variables);

}  // namespace tutti
