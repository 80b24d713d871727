// Clipping of gradients after they are summed over replicas.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "core/names.h"
#include "tensor/step_hooks.h"
#include "tensor/sum_of_squares.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

Gradient clipped_by_value(const Gradient& gradient, double limit) {
  if (gradient.is_none()) return gradient;
  // The limit applies to the sum of duplicate rows.
  return clip(gradient.to_dense(), -limit, limit);
}

double factor_for(double norm, double limit) { return norm > limit ? limit / norm : 1.0; }

}  // namespace

void ClippingOptions::validate(std::string_view who) const {
  const int set = clipnorm.has_value() + clipvalue.has_value() + global_clipnorm.has_value();
  internal::require(set <= 1, who,
                    ": expected at most one of clipnorm, clipvalue and global_clipnorm, got ", set);
  for (const auto& value : {clipnorm, clipvalue, global_clipnorm}) {
    internal::require(!value || *value > 0.0, who, ": expected a positive clipping limit, got ",
                      value.value_or(0.0));
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

/// Returns true if reading the gradient would make the host wait, or make a mesh gather its shards.
bool is_out_of_reach(const Gradient& gradient) {
  if (gradient.is_none()) return false;
  const Tensor& values = gradient.is_dense() ? gradient.dense() : gradient.slices().values;
  return !host_reads_at_once(values) || internal::lazy_value(values);
}

/// Gradients on one device, and the sums of their squares. The sums stay on the device, so the host
/// does not wait.
struct OnDevice {
  Device device;
  std::vector<std::size_t> indices;  // positions in the list of gradients
  std::vector<Tensor> values;        // the gradients as dense tensors
  Tensor squares;                    // float64 [indices.size()]
};

/// Returns the sums of squares of the unsharded gradients, with only one of them in memory at a
/// time.
Tensor squares_of_wholes(const OnDevice& on_device, GradientReducer& reducer) {
  std::vector<Tensor> squares;
  for (std::size_t n = 0; n < on_device.indices.size(); ++n) {
    const Gradient whole = reducer.whole(on_device.indices[n], on_device.values[n]);
    squares.push_back(sums_of_squares({{whole.dense()}}));
  }
  return concat(squares, 0);
}

std::vector<OnDevice> squares_by_device(std::span<const Gradient> gradients,
                                        GradientReducer* reducer) {
  std::vector<OnDevice> all;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].is_none()) continue;
    const Tensor values = gradients[i].to_dense();
    // On a mesh, all gradients form one group, because all mesh positions must make the same calls.
    auto found = std::ranges::find_if(all, [&](const OnDevice& each) {
      return each.device == values.device() || OpPartitioner::current();
    });
    if (found == all.end()) found = all.insert(found, OnDevice{values.device(), {}, {}, {}});
    found->indices.push_back(i);
    found->values.push_back(values);
  }
  for (OnDevice& each : all) {
    each.squares = reducer ? squares_of_wholes(each, *reducer) : sums_of_squares(each.values);
  }
  return all;
}

/// Returns limit / norm where norm > limit, else 1.
Tensor factors_for(const Tensor& squares, double limit) {
  const Tensor norms = sqrt(squares);
  return where(greater(norms, limit), limit / norms, 1.0);
}

Gradient scaled(const Gradient& gradient, const Tensor& factor) {
  if (gradient.is_dense()) return multiply(gradient.dense(), factor);
  const IndexedSlices& slices = gradient.slices();
  return IndexedSlices{multiply(slices.values, factor.to(slices.values.device())), slices.indices,
                       slices.dense_shape};
}

/// Multiplies each of the device's gradients by its element of `factors` [n], or all of them by a
/// single factor [].
void scale_all(std::vector<Gradient>& gradients, const OnDevice& on_device, const Tensor& factors) {
  std::map<DType, Tensor> by_type;
  for (std::size_t n = 0; n < on_device.indices.size(); ++n) {
    Tensor& converted = by_type[on_device.values[n].dtype()];
    if (!converted.defined()) converted = cast(factors, on_device.values[n].dtype());
    const Tensor own =
        factors.rank() == 0
            ? converted
            : converted.detached_rows(static_cast<std::int64_t>(n), 1).detached_reshape({});
    Gradient& gradient = gradients[on_device.indices[n]];
    gradient = scaled(gradient, own);
  }
}

std::vector<Gradient> clipped_on_device(std::vector<Gradient> gradients,
                                        const ClippingOptions& options, GradientReducer* reducer) {
  const std::vector<OnDevice> all = squares_by_device(gradients, reducer);
  if (options.clipnorm) {
    for (const OnDevice& each : all) {
      scale_all(gradients, each, factors_for(each.squares, *options.clipnorm));
    }
    return gradients;
  }
  Tensor total;
  for (const OnDevice& each : all) {
    const Tensor sum = reduce_sum(each.squares);
    total = total.defined() ? total + sum.to(total.device()) : sum;
  }
  const Tensor factor = factors_for(total, *options.global_clipnorm);
  for (const OnDevice& each : all) {
    scale_all(gradients, each, all.size() == 1 ? factor : factor.to(each.device));
  }
  return gradients;
}

}  // namespace

std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options) {
  return internal::clip_gradients(std::move(gradients), options, nullptr);
}

std::vector<Gradient> internal::clip_gradients(std::vector<Gradient> gradients,
                                               const ClippingOptions& options,
                                               GradientReducer* reducer) {
  if (options.clipvalue) {
    for (Gradient& gradient : gradients) {
      gradient = clipped_by_value(gradient, *options.clipvalue);
    }
    return gradients;
  }
  if (!options.clipnorm && !options.global_clipnorm) return gradients;
  if (std::ranges::any_of(gradients, is_out_of_reach)) {
    return clipped_on_device(std::move(gradients), options, reducer);
  }
  std::vector<double> squares;  // computed one by one, to keep only one full gradient in memory
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    squares.push_back(sum_of_squares(reducer ? reducer->whole(i, gradients[i]) : gradients[i]));
  }
  if (options.clipnorm) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const double norm = std::sqrt(squares[i]);
      if (norm <= *options.clipnorm) continue;
      gradients[i] = scale_gradient(gradients[i], factor_for(norm, *options.clipnorm));
    }
    return gradients;
  }
  const double norm = std::sqrt(tree_sum(std::move(squares)));
  if (norm > *options.global_clipnorm) {
    const double factor = factor_for(norm, *options.global_clipnorm);
    for (Gradient& gradient : gradients) gradient = scale_gradient(gradient, factor);
  }
  return gradients;
}

}  // namespace tutti
