// What keeps weights in bounds: penalties in the loss, conditions after each update.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A function of a weight; by default none. A value type.
class WeightFunction {
 public:
  using Function = std::function<Tensor(const Tensor& weight)>;

  WeightFunction() = default;
  /// `call`: what Model::save() writes, the call that makes it: ["l2", 0.01].
  explicit WeightFunction(Function function, Json call = {})
      : function_(std::move(function)), call_(std::move(call)) {}

  bool empty() const { return !function_; }
  Tensor operator()(const Tensor& weight) const;
  /// The call; null where this is empty. Throws kUnimplemented for a function of one's own.
  Json to_json() const;

 private:
  Function function_;
  Json call_;
};

// Penalties on weights.

/// A penalty [] computed from a weight, differentiable; by default none. A value type.
class Regularizer : public WeightFunction {
 public:
  using WeightFunction::WeightFunction;
  Regularizer() = default;
  /// "l1", "l2" or "l1_l2", each with factor 0.01, or "orthogonal_regularizer"; "" for none. Throws
  /// kInvalidArgument listing them for another name.
  Regularizer(const char* name);
  static Regularizer from_json(const Json& call);
};

namespace regularizers {
/// factor * sum |w|.
Regularizer l1(double factor = 0.01);
/// factor * sum w^2 (without 1/2, as Keras).
Regularizer l2(double factor = 0.01);
/// The sum of both.
Regularizer l1_l2(double l1_factor = 0.01, double l2_factor = 0.01);
/// factor times the mean |cosine| of all pairs of rows of a matrix.
Regularizer orthogonal(double factor = 0.01);
}  // namespace regularizers

// Conditions that weights are brought back to after each update.

/// A projection of a weight, of its shape; by default none. Model::fit applies it after every
/// update, on all replicas; a loop written by hand calls Layer::apply_constraints(). A value type.
class Constraint : public WeightFunction {
 public:
  using WeightFunction::WeightFunction;
  Constraint() = default;
  /// "max_norm", "non_neg", "unit_norm" or "min_max_norm" with Keras's defaults; "" for none.
  /// Throws kInvalidArgument listing them for another name.
  Constraint(const char* name);
  static Constraint from_json(const Json& call);
};

namespace constraints {

/// One axis, or several that make one norm.
struct NormAxes {
  NormAxes(int axis) : axes{axis} {}
  NormAxes(std::initializer_list<int> several) : axes(several) {}
  Json to_json() const { return Json::array_of(axes); }
  static NormAxes from_json(const Json& json);

  std::vector<int> axes;
};

/// Norms are those along `axis`: 0 for the columns of a Dense kernel, {0, 1, 2} for the filters of
/// a Conv2D kernel.
struct MaxNormOptions {
  double max_value = 2.0;
  NormAxes axis = 0;
};
struct MinMaxNormOptions {
  double min_value = 0.0;
  double max_value = 1.0;
  /// How far towards the allowed norm a weight goes at once: 1 all the way.
  double rate = 1.0;
  NormAxes axis = 0;
};

/// Longer vectors are cut to max_value.
Constraint max_norm(MaxNormOptions options = {});
/// Values below 0 become 0.
Constraint non_neg();
/// Vectors of length 1.
Constraint unit_norm(NormAxes axis = 0);
/// Vectors of a length between the two.
Constraint min_max_norm(MinMaxNormOptions options = {});

}  // namespace constraints
}  // namespace tutti
