// What keeps weights in bounds: penalties in the loss, conditions after each update.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/regularization.h"

#include <numeric>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/names.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Penalties on weights, by function and by name.

namespace {

/// 0, 1, ..., count - 1.
Tensor indices_below(std::int64_t count, Device device) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return Tensor::from({count}, numbers, device);
}

}  // namespace

Regularizer::Regularizer(const char* name) {
  const std::string_view text = name;
  if (text == "l1") {
    *this = regularizers::l1();
  } else if (text == "l2") {
    *this = regularizers::l2();
  } else if (text == "l1_l2") {
    *this = regularizers::l1_l2();
  } else if (text == "orthogonal_regularizer") {
    *this = regularizers::orthogonal();
  } else if (!text.empty()) {
    fail(ErrorCode::kInvalidArgument, "Regularizer: no regularizer is named '", text,
         "'; expected one of ",
         internal::choices({"l1", "l2", "l1_l2", "orthogonal_regularizer"}, text));
  }
}

Tensor WeightFunction::operator()(const Tensor& weight) const {
  TUTTI_CHECK(function_, "an empty regularizer or constraint was called");
  return function_(weight);
}

namespace regularizers {

Regularizer l1(double factor) {
  return Regularizer([factor](const Tensor& weight) { return reduce_sum(abs(weight)) * factor; });
}

Regularizer l2(double factor) {
  return Regularizer(
      [factor](const Tensor& weight) { return reduce_sum(square(weight)) * factor; });
}

Regularizer l1_l2(double l1_factor, double l2_factor) {
  return Regularizer([=](const Tensor& weight) {
    return reduce_sum(abs(weight)) * l1_factor + reduce_sum(square(weight)) * l2_factor;
  });
}

Regularizer orthogonal(double factor) {
  return Regularizer([factor](const Tensor& weight) {
    if (weight.rank() != 2) {
      fail(ErrorCode::kInvalidArgument, "regularizers::orthogonal: expected a matrix, got shape ",
           weight.shape());
    }
    const std::int64_t rows = weight.shape()[0];
    // Keras's guard: rows of zeros stay zeros.
    const Tensor norms = sqrt(maximum(reduce_sum(square(weight), {{1}, true}), 1e-12));
    const Tensor unit = weight / norms;
    const Tensor products = abs(matmul(unit, unit, {.transpose_b = true}));
    const Tensor off_diagonal =
        products * (1.0 - one_hot(indices_below(rows, weight.device()), rows, weight.dtype()));
    const double pairs = 0.5 * static_cast<double>(rows) * static_cast<double>(rows - 1);
    return reduce_sum(off_diagonal) * (rows > 1 ? factor * 0.5 / pairs : 0.0);
  });
}

}  // namespace regularizers

// Projections of weights, by function and by name.

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
         "'; expected one of ",
         internal::choices({"max_norm", "non_neg", "unit_norm", "min_max_norm"}, text));
  }
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
