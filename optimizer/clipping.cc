// Limits on gradients, applied to what was summed over replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/clipping.h"

#include <algorithm>
#include <cmath>

#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

constexpr std::size_t kBlock = 4096;

template <class T>
double block_sum(std::span<const T> values) {
  double sum = 0.0;
  for (T value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// Neighbours are added, then neighbours of the sums, until one is left.
double tree_sum(std::vector<double> sums) {
  while (sums.size() > 1) {
    std::size_t out = 0;
    for (std::size_t i = 0; i < sums.size(); i += 2) {
      sums[out++] = i + 1 < sums.size() ? sums[i] + sums[i + 1] : sums[i];
    }
    sums.resize(out);
  }
  return sums.empty() ? 0.0 : sums.front();
}

Tensor scaled(const Tensor& values, double factor) { return multiply(values, factor); }

Gradient scaled(const Gradient& gradient, double factor) {
  if (gradient.is_none()) return gradient;
  if (gradient.is_dense()) return scaled(gradient.dense(), factor);
  IndexedSlices slices = gradient.slices();
  slices.values = scaled(slices.values, factor);
  return slices;
}

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

double sum_of_squares(const Gradient& gradient) {
  if (gradient.is_none()) return 0.0;
  const Tensor values = gradient.to_dense();
  return visit_floating(values.dtype(), "sum_of_squares", [&]<class T>() {
    const auto elements = values.host_span<T>();
    std::vector<double> sums;
    for (std::size_t first = 0; first < elements.size(); first += kBlock) {
      sums.push_back(block_sum(elements.subspan(first, std::min(kBlock, elements.size() - first))));
    }
    return tree_sum(std::move(sums));
  });
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
        gradient = scaled(gradient, factor_for(norm, *options.clipnorm));
    }
  } else if (options.global_clipnorm) {
    std::vector<double> squares;
    for (const Gradient& gradient : gradients) squares.push_back(sum_of_squares(gradient));
    const double norm = std::sqrt(tree_sum(std::move(squares)));
    if (norm > *options.global_clipnorm) {
      const double factor = factor_for(norm, *options.global_clipnorm);
      for (Gradient& gradient : gradients) gradient = scaled(gradient, factor);
    }
  }
  return gradients;
}

}  // namespace tutti
