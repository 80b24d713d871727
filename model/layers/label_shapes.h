// Bringing labels to the shape and type of predictions: what losses and metrics share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Labels cast to the predictions' type and given their shape: [batch] and [batch, 1] fit each
/// other. Throws kInvalidArgument naming `who` and both shapes.
Tensor same_shape_labels(const Tensor& labels, const Tensor& predictions, std::string_view who);

/// Labels [batch, ...] as int64 without a last axis of 1, for predictions [batch, ..., classes].
/// Throws likewise.
Tensor class_numbers(const Tensor& labels, const Tensor& predictions, std::string_view who);

/// values [batch, ...] -> [batch]: the mean over all axes but the first. Throws kInvalidArgument
/// for a scalar.
Tensor mean_per_example(const Tensor& values);

}  // namespace tutti::internal
