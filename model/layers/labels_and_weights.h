// Labels and weights as losses and metrics need them: in the shape of the predictions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti::internal {

// Bringing labels to the shape and type of predictions: what losses and metrics share.

/// Labels cast to the predictions' type and given their shape: [batch] and [batch, 1] fit each
/// other. Throws kInvalidArgument naming `who`, the line of `labels` and both shapes.
Tensor same_shape_labels(const Operand& labels, const Operand& predictions, std::string_view who);

/// Labels [batch, ...] as int64 without a last axis of 1, for predictions [batch, ..., classes].
/// Throws likewise, and as whole_numbers() does.
Tensor class_numbers(const Operand& labels, const Operand& predictions, std::string_view who);

/// x [batch, ...] as int64. Throws kInvalidArgument for a fraction or NaN, naming row and value;
/// where the host does not read it at once (a GPU, a traced step) such an element becomes -1, which
/// is no class.
Tensor whole_numbers(const Operand& x, std::string_view who);

/// Warns once, in the name of `who`, of binary labels outside [0, 1] that the host has.
void warn_of_binary_labels(const Tensor& labels, std::string_view who);

/// values [batch, ...] -> [batch]: the mean over all axes but the first. Throws kInvalidArgument
/// for a scalar.
Tensor mean_per_example(const Tensor& values);

// Weights of examples.

/// `sample_weight` as a tensor that multiplies `values`: cast to their dtype, dimensions that it
/// lacks at the end added, each dimension equal or 1. A scalar fits always. Throws kInvalidArgument
/// naming `who` and both shapes. The result broadcasts to values.shape().
Tensor fitted_weight(const Tensor& sample_weight, const Tensor& values, std::string_view who);

/// values * fitted_weight(...); `values` when `sample_weight` is undefined.
Tensor weighted(const Tensor& values, const Tensor& sample_weight, std::string_view who);

// What tells the steps of sequences apart in losses and metrics: a mask, and weights of steps.

/// The mask of predictions [batch, steps, ...] and the weights of their steps. `sample_weight` may
/// also be one per example ([], [batch], [batch, 1]) or undefined.
class StepWeights {
 public:
  /// Throws kInvalidArgument naming `who` (which must outlive it) and the shapes, unless
  /// predictions have an axis behind those of the weights.
  StepWeights(const Tensor& predictions, const Tensor& sample_weight, std::string_view who);

  /// Whether there is a mask or a weight per step; otherwise examples count as wholes, and the
  /// other functions are of no use.
  bool any() const { return shape_.rank() > 0; }
  /// What `per_example` gives for each step as an example of its own; 0 where the mask is false.
  Tensor values(const std::function<Tensor(const Tensor&, const Tensor&)>& per_example,
                const Tensor& labels, const Tensor& predictions) const;
  /// The weight of each step, float64; 0 where the mask is false.
  Tensor weights() const;
  /// The mean of `values` over the steps of each example that count, [batch]; 0 when none does.
  Tensor mean_of_examples(const Tensor& values) const;
  /// Steps of an example, counted or not.
  std::int64_t per_example() const;

 private:
  Tensor merged(const Tensor& x, const char* what) const;
  /// 1 and 0 per step, as numbers like `values`.
  Tensor counted(DType dtype, Device device) const;

  Shape shape_;           // of the steps: the leading dimensions of the predictions
  Tensor mask_;           // may be undefined
  Tensor sample_weight_;  // may be undefined
  std::string_view who_;
};

}  // namespace tutti::internal
