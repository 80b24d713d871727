// Gradients of reductions.
// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

namespace {

/// Reduced axes, and the shape of the result with these axes kept at length 1.
struct Reduction {
  explicit Reduction(const GradientContext& c) {
    const std::uint32_t bits = c.attributes_as<AxesAttributes>().axes;
    kept = c.shape(0);
    for (int axis = 0; axis < c.shape(0).rank(); ++axis) {
      if (!(bits >> axis & 1u)) continue;
      axes.push_back(axis);
      count *= c.shape(0).dim(axis);
      kept = kept.with_dim(axis, 1);
    }
  }

  /// Sums x over the reduced axes, keeping the rank.
  Tensor sum(const Tensor& x) const {
    return axes.empty() ? x : reduce_sum(x, {.axes = axes, .keep_dims = true});
  }

  std::vector<int> axes;
  Shape kept;
  std::int64_t count = 1;
};

/// Selects the elements that exclusive_product() multiplies: those before or after an element.
enum class Side { kBefore, kAfter };

/// Shifts x by `count` columns away from `side`, filling with ones.
Tensor shifted(const Tensor& x, std::int64_t count, Side side) {
  const std::int64_t rows = x.shape().dim(0), columns = x.shape().dim(1);
  if (side == Side::kBefore) {
    return pad(slice(x, {0, 0}, {rows, columns - count}), {0, count}, {0, 0}, 1.0);
  }
  return pad(slice(x, {0, count}, {rows, columns - count}), {0, 0}, {0, count}, 1.0);
}

/// Returns a tensor of x's shape, in which each element is the product of all elements of x before
/// (or after) it in its row. Each step doubles the distance covered, so the number of steps is
/// logarithmic.
Tensor exclusive_product(const Tensor& x, Side side) {
  Tensor product = shifted(x, 1, side);
  for (std::int64_t step = 1; step < x.shape().dim(1); step *= 2) {
    product = product * shifted(product, step, side);
  }
  return product;
}

Gradients reduce_mean_gradient(const GradientContext& c) {
  const Reduction reduction(c);
  const Tensor dy = reshape(c.dy(), reduction.kept) / static_cast<double>(reduction.count);
  return single(broadcast_to(dy, c.shape(0)));
}

/// As in tf, tied elements share the gradient equally.
Gradients reduce_extreme_gradient(const GradientContext& c) {
  const Reduction reduction(c);
  const Tensor y = reshape(c.out(), reduction.kept);
  const Tensor mask = cast(equal(c.in(0), y), c.dtype(0));
  return single(mask * (reshape(c.dy(), reduction.kept) / reduction.sum(mask)));
}

/// Multiplies all other elements instead of dividing the product by the element, so that the result
/// is correct for zeros and can be differentiated again.
Gradients reduce_product_gradient(const GradientContext& c) {
  const Tensor& x = c.in(0);
  if (x.num_elements() == 0) return single(Tensor::zeros(x.shape(), x.dtype(), x.device()));
  const Reduction reduction(c);
  std::vector<int> permutation;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (reduction.kept.dim(axis) == x.shape().dim(axis)) permutation.push_back(axis);
  }
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (reduction.kept.dim(axis) != x.shape().dim(axis)) permutation.push_back(axis);
  }
  std::vector<int> inverse(permutation.size());
  for (std::size_t i = 0; i < permutation.size(); ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
  }
  const std::int64_t rows = x.num_elements() / reduction.count;
  const Tensor moved = x.rank() < 2 ? x : transpose(x, permutation);
  const Tensor table = reshape(moved, Shape{rows, reduction.count});
  const Tensor others =
      exclusive_product(table, Side::kBefore) * exclusive_product(table, Side::kAfter);
  const Tensor gradient = reshape(others * reshape(c.dy(), Shape{rows, 1}), moved.shape());
  return single(x.rank() < 2 ? gradient : transpose(gradient, inverse));
}

using C = const GradientContext&;  // alias for the table below

constexpr OpGradient kReductionGradients[] = {
    {OpId::kReduceSum,
     [](C c) { return single(broadcast_to(reshape(c.dy(), Reduction(c).kept), c.shape(0))); },
     kNoTensor},
    {OpId::kReduceMean, reduce_mean_gradient, kNoTensor},
    {OpId::kReduceMax, reduce_extreme_gradient, kEveryTensor, kFirstTensor},
    {OpId::kReduceMin, reduce_extreme_gradient, kEveryTensor, kFirstTensor},
    {OpId::kReduceProduct, reduce_product_gradient, kEveryTensor},
};

}  // namespace

std::span<const OpGradient> reduction_gradients() { return kReductionGradients; }

}  // namespace tutti::internal
