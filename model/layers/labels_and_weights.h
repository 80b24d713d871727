// Adapts labels and weights to the shape of the predictions, for losses and metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti::internal {

// Adapts labels to the shape and type of predictions.

/// Adds or removes a trailing axis of length 1 to give labels [batch, ...] the rank of the
/// predictions. Returns other labels unchanged. Same as Keras's squeeze_or_expand_to_same_rank().
Tensor same_rank_labels(const Tensor& labels, const Tensor& predictions);
/// Returns the labels with the type and shape of the predictions; converts between [batch] and
/// [batch, 1]. Throws kInvalidArgument, naming `who`, the line of `labels` and both shapes.
Tensor same_shape_labels(const Operand& labels, const Operand& predictions, std::string_view who);

/// Returns labels [batch, ...] as int64 without a last axis of 1, for predictions [batch, ...,
/// classes]. Throws the same errors as same_shape_labels() and whole_numbers().
Tensor class_numbers(const Operand& labels, const Operand& predictions, std::string_view who);

/// Returns x [batch, ...] as int64. Throws kInvalidArgument for a fraction or NaN, naming the row
/// and the value. If the host cannot read x without waiting (GPU, traced step), such an element
/// becomes -1, which is not a class.
Tensor whole_numbers(const Operand& x, std::string_view who);

/// Warns once, naming `who`, about binary labels outside [0, 1] if the host can read them.
void warn_of_binary_labels(const Tensor& labels, std::string_view who);

/// Maps values [batch, ...] to their means over all axes but the first, [batch]. Throws
/// kInvalidArgument for a scalar.
Tensor mean_per_example(const Tensor& values);

// Weights of examples.

/// Returns `sample_weight` as a factor for `values`: cast to their dtype and with the missing
/// trailing dimensions, so that it broadcasts to values.shape(). Each dimension must be 1 or equal
/// to the same dimension of `values`; a scalar always fits. Otherwise throws kInvalidArgument,
/// naming `who` and both shapes.
Tensor fitted_weight(const Tensor& sample_weight, const Tensor& values, std::string_view who);

/// Returns values * fitted_weight(...), or `values` if `sample_weight` is undefined.
Tensor weighted(const Tensor& values, const Tensor& sample_weight, std::string_view who);

// Masks and weights of sequence steps, for losses and metrics.

/// The mask of predictions [batch, steps, ...] and the weights of their steps. `sample_weight` may
/// also have one weight per example ([], [batch], [batch, 1]) or be undefined.
class StepWeights {
 public:
  /// Throws kInvalidArgument, naming `who` and the shapes, if there is a weight per step and the
  /// predictions have no axis after the axes of the weights. `who` must outlive this object.
  StepWeights(const Tensor& predictions, const Tensor& sample_weight, std::string_view who);

  /// Returns true if there is a mask or a weight per step. Otherwise, there is one value per
  /// example, and the other functions must not be called.
  bool any() const { return shape_.rank() > 0; }
  /// Calls `per_example` with each step as a separate example and returns the values, with 0 where
  /// the mask is false.
  Tensor values(const std::function<Tensor(const Tensor&, const Tensor&)>& per_example,
                const Tensor& labels, const Tensor& predictions) const;
  /// Returns the weight of each step, as float64; 0 where the mask is false.
  Tensor weights() const;
  /// Returns the sum of values times weights over the steps of each example, divided by the number
  /// of its unmasked steps: [batch]; 0 if all its steps are masked.
  Tensor mean_of_examples(const Tensor& values) const;
  /// Returns the number of steps of an example, including masked steps.
  std::int64_t per_example() const;

 private:
  Tensor merged(const Tensor& x, const char* what) const;
  /// Returns 1 for unmasked and 0 for masked steps.
  Tensor counted(DType dtype, Device device) const;

  Shape shape_;           // leading dimensions of the predictions
  Tensor mask_;           // may be undefined
  Tensor sample_weight_;  // may be undefined
  std::string_view who_;
};

}  // namespace tutti::internal
