// Regularizers, which penalise weights in the loss, and constraints, which are applied after each
// update.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Function of a weight, such as a regularizer; empty by default. A value type.
class WeightFunction {
 public:
  using Function = std::function<Tensor(const Tensor& weight)>;

  WeightFunction() = default;
  /// `call`: the call that recreates the function, as Model::save() writes it: ["l2", 0.01].
  explicit WeightFunction(Function function, Json call = {})
      : function_(std::move(function)), call_(std::move(call)) {}

  bool empty() const { return !function_; }
  Tensor operator()(const Tensor& weight) const;
  /// Returns the call that recreates the function; null if empty. Throws kUnimplemented for a
  /// custom function.
  Json to_json() const;

 private:
  Function function_;
  Json call_;
};

// Penalties on weights.

/// Differentiable scalar penalty on a weight; empty by default. A value type.
class Regularizer : public WeightFunction {
 public:
  using WeightFunction::WeightFunction;
  Regularizer() = default;
  /// "l1", "l2" or "l1_l2", each with factor 0.01, or "orthogonal_regularizer"; "" for none. Throws
  /// kInvalidArgument for any other name, listing the valid ones.
  Regularizer(const char* name);
  static Regularizer from_json(const Json& call);
};

namespace regularizers {
/// factor * sum |w|.
Regularizer l1(double factor = 0.01);
/// factor * sum(w^2) (without 1/2, as in Keras).
Regularizer l2(double factor = 0.01);
/// Sum of l1(l1_factor) and l2(l2_factor).
Regularizer l1_l2(double l1_factor = 0.01, double l2_factor = 0.01);
/// factor times the mean of |cosine| over all pairs of rows of a matrix.
Regularizer orthogonal(double factor = 0.01);
}  // namespace regularizers

// Constraints on weights.

/// Function that projects a weight and keeps its shape; empty by default. Model::fit() applies it
/// after every update, on all replicas; a custom loop calls Layer::apply_constraints(). A value
/// type.
class Constraint : public WeightFunction {
 public:
  using WeightFunction::WeightFunction;
  Constraint() = default;
  /// "max_norm", "non_neg", "unit_norm" or "min_max_norm" with Keras's defaults; "" for none.
  /// Throws kInvalidArgument for any other name, listing the valid ones.
  Constraint(const char* name);
  static Constraint from_json(const Json& call);
};

namespace constraints {

/// Axes over which one norm is computed.
struct NormAxes {
  NormAxes(int axis) : axes{axis} {}
  NormAxes(std::initializer_list<int> several) : axes(several) {}
  Json to_json() const { return Json::array_of(axes); }
  static NormAxes from_json(const Json& json);

  std::vector<int> axes;
};

/// Options for max_norm(). Norms are computed along `axis`: 0 for the columns of a Dense kernel,
/// {0, 1, 2} for the filters of a Conv2D kernel.
struct MaxNormOptions {
  double max_value = 2.0;
  NormAxes axis = 0;
};
struct MinMaxNormOptions {
  double min_value = 0.0;
  double max_value = 1.0;
  /// Fraction of the deviation from the allowed norm that one update corrects; 1 corrects all of
  /// it.
  double rate = 1.0;
  NormAxes axis = 0;
};

/// Scales vectors longer than max_value down to length max_value.
Constraint max_norm(MaxNormOptions options = {});
/// Replaces negative values with 0.
Constraint non_neg();
/// Scales vectors to length 1.
Constraint unit_norm(NormAxes axis = 0);
/// Scales vectors so that their length is between min_value and max_value.
Constraint min_max_norm(MinMaxNormOptions options = {});

}  // namespace constraints
}  // namespace tutti
