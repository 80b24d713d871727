// What tells the steps of sequences apart in losses and metrics: a mask, and weights of steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

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
