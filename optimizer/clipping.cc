// Limits on gradients, applied to what was summed over replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/clipping.h"

#include <algorithm>
#include <cmath>

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
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
  const Tensor values = gradient.to_dense().to(Device{});
  return sum_of_squares(values.dtype(), values.bytes().data(),
                        static_cast<std::size_t>(values.num_elements()));
}

namespace {

bool is_on_gpu(const Gradient& gradient) {
  if (gradient.is_none()) return false;
  const Tensor& values = gradient.is_dense() ? gradient.dense() : gradient.slices().values;
  return values.device().type != DeviceType::kCpu;
}

/// [] float64, on the gradient's device: the host waits for nothing.
Tensor squares_on_device(const Gradient& gradient) {
  return reduce_sum(square(cast(gradient.to_dense(), DType::kFloat64)));
}

/// The gradient times factor_for(sqrt(squares), limit), a number that only the device knows.
Gradient limited_on_device(const Gradient& gradient, const Tensor& squares, double limit) {
  const Tensor norm = sqrt(squares);
  const Tensor factor = where(greater(norm, limit), limit / norm, 1.0);
  const auto scaled = [&](const Tensor& values) {
    return multiply(values, cast(factor.to(values.device()), values.dtype()));
  };
  if (gradient.is_dense()) return scaled(gradient.dense());
  const IndexedSlices& slices = gradient.slices();
  return IndexedSlices{scaled(slices.values), slices.indices, slices.dense_shape};
}

std::vector<Gradient> clipped_on_device(std::vector<Gradient> gradients,
                                        const ClippingOptions& options) {
  std::vector<Tensor> squares;
  for (const Gradient& gradient : gradients) {
    squares.push_back(gradient.is_none() ? Tensor() : squares_on_device(gradient));
  }
  Tensor total;  // of all, for global_clipnorm
  for (Tensor& each : squares) {
    if (!each.defined()) continue;
    total = total.defined() ? total + each.to(total.device()) : each;
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].is_none()) continue;
    gradients[i] = options.clipnorm
                       ? limited_on_device(gradients[i], squares[i], *options.clipnorm)
                       : limited_on_device(gradients[i], total, *options.global_clipnorm);
  }
  return gradients;
}

}  // namespace

std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options) {
  if (options.clipvalue) {
    for (Gradient& gradient : gradients) {
      gradient = clipped_by_value(gradient, *options.clipvalue);
    }
    return gradients;
  }
  if (!options.clipnorm && !options.global_clipnorm) return gradients;
  if (std::ranges::any_of(gradients, is_on_gpu)) {
    return clipped_on_device(std::move(gradients), options);
  }
  if (options.clipnorm) {
    for (Gradient& gradient : gradients) {
      const double norm = std::sqrt(sum_of_squares(gradient));
      if (norm > *options.clipnorm)
        gradient = scale_gradient(gradient, factor_for(norm, *options.clipnorm));
    }
    return gradients;
  }
  std::vector<double> squares;
  for (const Gradient& gradient : gradients) squares.push_back(sum_of_squares(gradient));
  const double norm = std::sqrt(tree_sum(std::move(squares)));
  if (norm > *options.global_clipnorm) {
    const double factor = factor_for(norm, *options.global_clipnorm);
    for (Gradient& gradient : gradients) gradient = scale_gradient(gradient, factor);
  }
  return gradients;
}

}  // namespace tutti
