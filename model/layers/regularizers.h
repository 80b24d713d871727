// Penalties on weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// A penalty [] computed from a weight; by default none. A value type.
class Regularizer {
 public:
  using Function = std::function<Tensor(const Tensor& weight)>;

  Regularizer() = default;
  /// "l1", "l2" or "l1_l2", each with factor 0.01, or "orthogonal_regularizer"; "" for none. Throws
  /// kInvalidArgument listing them for another name.
  Regularizer(const char* name);
  explicit Regularizer(Function function) : function_(std::move(function)) {}

  bool empty() const { return !function_; }
  /// Differentiable.
  Tensor operator()(const Tensor& weight) const;

 private:
  Function function_;
};

namespace regularizers {
/// factor * sum |w|.
Regularizer l1(double factor = 0.01);
/// factor * sum w^2 (without 1/2, as Keras).
Regularizer l2(double factor = 0.01);
Regularizer l1_l2(double l1_factor = 0.01, double l2_factor = 0.01);
/// factor times the mean |cosine| of all pairs of rows of a matrix.
Regularizer orthogonal(double factor = 0.01);
}  // namespace regularizers

}  // namespace tutti
