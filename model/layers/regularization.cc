// Regularizers, which penalise weights in the loss, and constraints, which are applied after each
// update.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/regularization.h"

#include <numeric>
#include <string_view>
#include <vector>

#include "core/names.h"
#include "model/layers/named_functions.h"
#include "tutti/core/error.h"
#include "tutti/core/json_values.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Penalties on weights, and the table of their names.

namespace {

using internal::NamedFunction;
using internal::reader_of;

const NamedFunction<Regularizer> kRegularizers[] = {
    {"l1", [] { return regularizers::l1(); }, &reader_of<&regularizers::l1>},
    {"l2", [] { return regularizers::l2(); }, &reader_of<&regularizers::l2>},
    {"l1_l2", [] { return regularizers::l1_l2(); }, &reader_of<&regularizers::l1_l2>},
    {"orthogonal_regularizer", [] { return regularizers::orthogonal(); },
     &reader_of<&regularizers::orthogonal>}};

const NamedFunction<Constraint> kConstraints[] = {
    {"max_norm", [] { return constraints::max_norm(); }, &reader_of<&constraints::max_norm>},
    {"non_neg", &constraints::non_neg, &reader_of<&constraints::non_neg>},
    {"unit_norm", [] { return constraints::unit_norm(); }, &reader_of<&constraints::unit_norm>},
    {"min_max_norm", [] { return constraints::min_max_norm(); },
     &reader_of<&constraints::min_max_norm>}};

/// Returns the numbers 0, 1, ..., count - 1.
Tensor indices_below(std::int64_t count, Device device) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return Tensor::from({count}, numbers, device);
}

}  // namespace

Regularizer::Regularizer(const char* name) {
  if (*name == '\0') return;
  *this = internal::named_entry(kRegularizers, &NamedFunction<Regularizer>::name,
                                std::string_view(name), "Regularizer", "regularizer")
              .make();
}

Regularizer Regularizer::from_json(const Json& call) {
  static const auto table = internal::call_table(
      std::span<const NamedFunction<Regularizer>>(kRegularizers), "regularizer");
  return call.is_null() ? Regularizer() : table.make(call);
}

Json WeightFunction::to_json() const {
  if (function_ && call_.is_null()) {
    fail(ErrorCode::kUnimplemented,
         "a regularizer or constraint that is a custom function cannot be saved; use one of "
         "regularizers:: or constraints::, or call only save_weights()");
  }
  return call_;
}

Tensor WeightFunction::operator()(const Tensor& weight) const {
  TUTTI_CHECK(function_, "an empty regularizer or constraint was called");
  return function_(weight);
}

namespace regularizers {

Regularizer l1(double factor) {
  return Regularizer([factor](const Tensor& weight) { return reduce_sum(abs(weight)) * factor; },
                     internal::call_of("l1", factor));
}

Regularizer l2(double factor) {
  return Regularizer([factor](const Tensor& weight) { return reduce_sum(square(weight)) * factor; },
                     internal::call_of("l2", factor));
}

Regularizer l1_l2(double l1_factor, double l2_factor) {
  return Regularizer(
      [=](const Tensor& weight) {
        return reduce_sum(abs(weight)) * l1_factor + reduce_sum(square(weight)) * l2_factor;
      },
      internal::call_of("l1_l2", l1_factor, l2_factor));
}

Regularizer orthogonal(double factor) {
  return Regularizer(
      [factor](const Tensor& weight) {
        internal::require(weight.rank() == 2,
                          "regularizers::orthogonal: expected a matrix, got shape ",
                          weight.shape());
        const std::int64_t rows = weight.shape()[0];
        // As in Keras, norms are bounded from below, so that rows of zeros stay zero.
        const Tensor norms = sqrt(maximum(reduce_sum(square(weight), {{1}, true}), 1e-12));
        const Tensor unit = weight / norms;
        const Tensor products = abs(matmul(unit, unit, {.transpose_b = true}));
        const Tensor off_diagonal =
            products * (1.0 - one_hot(indices_below(rows, weight.device()), rows, weight.dtype()));
        const double pairs = 0.5 * static_cast<double>(rows) * static_cast<double>(rows - 1);
        return reduce_sum(off_diagonal) * (rows > 1 ? factor * 0.5 / pairs : 0.0);
      },
      internal::call_of("orthogonal_regularizer", factor));
}

}  // namespace regularizers

// Constraints on weights, and the table of their names.

namespace {

/// Term added to norms in denominators, so that quotients stay finite for a norm of 0 (Keras's
/// epsilon).
constexpr double kSmallestNorm = 1e-7;

Tensor norms_of(const Tensor& weight, const constraints::NormAxes& axis) {
  return sqrt(reduce_sum(square(weight), {.axes = axis.axes, .keep_dims = true}));
}

}  // namespace

Constraint::Constraint(const char* name) {
  if (*name == '\0') return;
  *this = internal::named_entry(kConstraints, &NamedFunction<Constraint>::name,
                                std::string_view(name), "Constraint", "constraint")
              .make();
}

Constraint Constraint::from_json(const Json& call) {
  static const auto table =
      internal::call_table(std::span<const NamedFunction<Constraint>>(kConstraints), "constraint");
  return call.is_null() ? Constraint() : table.make(call);
}

constraints::NormAxes constraints::NormAxes::from_json(const Json& json) {
  NormAxes all({});
  all.axes = value_of<std::vector<int>>(json);
  return all;
}

namespace constraints {

Constraint max_norm(MaxNormOptions options) {
  return Constraint(
      [options](const Tensor& weight) {
        const Tensor norms = norms_of(weight, options.axis);
        return weight * (clip(norms, 0.0, options.max_value) / (norms + kSmallestNorm));
      },
      internal::call_of("max_norm", options));
}

Constraint non_neg() {
  return Constraint([](const Tensor& weight) { return maximum(weight, 0.0); },
                    internal::call_of("non_neg"));
}

Constraint unit_norm(NormAxes axis) {
  return Constraint(
      [axis](const Tensor& weight) { return weight / (norms_of(weight, axis) + kSmallestNorm); },
      internal::call_of("unit_norm", axis));
}

Constraint min_max_norm(MinMaxNormOptions options) {
  return Constraint(
      [options](const Tensor& weight) {
        const Tensor norms = norms_of(weight, options.axis);
        const Tensor wanted = clip(norms, options.min_value, options.max_value) * options.rate +
                              norms * (1.0 - options.rate);
        return weight * (wanted / (norms + kSmallestNorm));
      },
      internal::call_of("min_max_norm", options));
}

}  // namespace constraints
}  // namespace tutti
