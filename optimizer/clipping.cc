// Limits on gradients, applied to what was summed over replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/clipping.h"

#include <cmath>

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/sum_of_squares.h"

namespace tutti {
namespace {

Gradient clipped_by_value(const Gradient& gradient, double limit) {
  if (gradient.is_none()) return gradient;
  // A row that occurs several times is limited as a whole.
  return clip(gradient.to_dense(), -limit, limit);
}

double factor_for(double norm, double limit) { return norm > limit ? limit / norm : 1.0; }

}  // namespace

void ClippingOptions::validate(std::string_view who) const {
  const int set = clipnorm.has_value() + clipvalue.has_value() + global_clipnorm.has_value();
  if (set > 1) {
    fail(ErrorCode::kInvalidArgument, who,
         ": expected at most one of clipnorm, clipvalue and global_clipnorm, got ", set);
  }
  for (const auto& value : {clipnorm, clipvalue, global_clipnorm}) {
    if (value && !(*value > 0.0)) {
      fail(ErrorCode::kInvalidArgument, who, ": expected a positive clipping limit, got ", *value);
    }
  }
}

Gradient scale_gradient(const Gradient& gradient, double factor) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_dense()) return multiply(gradient.dense(), factor);
  IndexedSlices slices = gradient.slices();
  slices.values = multiply(slices.values, factor);
  return slices;
}

double sum_of_squares(const Gradient& gradient) {
  if (gradient.is_none()) return 0.0;
  const Tensor values = gradient.to_dense();
  return sum_of_squares(values.dtype(), values.bytes().data(),
                        static_cast<std::size_t>(values.num_elements()));
}

std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options) {
  if (options.clipvalue) {
    for (Gradient& gradient : gradients) {
      gradient = clipped_by_value(gradient, *options.clipvalue);
    }
  } else if (options.clipnorm) {
    for (Gradient& gradient : gradients) {
      const double norm = std::sqrt(sum_of_squares(gradient));
      if (norm > *options.clipnorm)
        gradient = scale_gradient(gradient, factor_for(norm, *options.clipnorm));
    }
  } else if (options.global_clipnorm) {
    std::vector<double> squares;
    for (const Gradient& gradient : gradients) squares.push_back(sum_of_squares(gradient));
    const double norm = std::sqrt(tree_sum(std::move(squares)));
    if (norm > *options.global_clipnorm) {
      const double factor = factor_for(norm, *options.global_clipnorm);
      for (Gradient& gradient : gradients) gradient = scale_gradient(gradient, factor);
    }
  }
  return gradients;
}

}  // namespace tutti
