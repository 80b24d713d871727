// Projections of weights, by function and by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/constraints.h"

#include <string_view>

#include "tutti/core/error.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {
namespace {

/// Keeps quotients by a norm of 0 finite (Keras's epsilon).
constexpr double kSmallestNorm = 1e-7;

Tensor norms_of(const Tensor& weight, const constraints::NormAxes& axis) {
  return sqrt(reduce_sum(square(weight), {.axes = axis.axes, .keep_dims = true}));
}

}  // namespace

Constraint::Constraint(const char* name) {
  const std::string_view text = name;
  if (text == "max_norm") {
    *this = constraints::max_norm();
  } else if (text == "non_neg") {
    *this = constraints::non_neg();
  } else if (text == "unit_norm") {
    *this = constraints::unit_norm();
  } else if (text == "min_max_norm") {
    *this = constraints::min_max_norm();
  } else if (!text.empty()) {
    fail(ErrorCode::kInvalidArgument, "Constraint: no constraint is named '", text,
         "'; expected one of max_norm, non_neg, unit_norm, min_max_norm");
  }
}

Tensor Constraint::operator()(const Tensor& weight) const {
  TUTTI_CHECK(function_, "an empty constraint was called");
  return function_(weight);
}

namespace constraints {

Constraint max_norm(MaxNormOptions options) {
  return Constraint([options](const Tensor& weight) {
    const Tensor norms = norms_of(weight, options.axis);
    return weight * (clip(norms, 0.0, options.max_value) / (norms + kSmallestNorm));
  });
}

Constraint non_neg() {
  return Constraint([](const Tensor& weight) { return maximum(weight, 0.0); });
}

Constraint unit_norm(NormAxes axis) {
  return Constraint(
      [axis](const Tensor& weight) { return weight / (norms_of(weight, axis) + kSmallestNorm); });
}

Constraint min_max_norm(MinMaxNormOptions options) {
  return Constraint([options](const Tensor& weight) {
    const Tensor norms = norms_of(weight, options.axis);
    const Tensor wanted = clip(norms, options.min_value, options.max_value) * options.rate +
                          norms * (1.0 - options.rate);
    return weight * (wanted / (norms + kSmallestNorm));
  });
}

}  // namespace constraints
}  // namespace tutti
