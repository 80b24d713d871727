// Gradients of operations that rearrange or select elements.
// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

namespace {

/// Returns the first `rank` values as a vector.
template <class Array>
auto prefix(const Array& values, int rank) {
  return std::vector<std::int64_t>(values.begin(), values.begin() + rank);
}

}  // namespace

GradientBlock slice_block(const GradientContext& c) {
  const auto begin = prefix(c.attributes_as<SliceAttributes>().begin, c.shape(0).rank());
  return {c.dy(), begin, c.shape(0)};
}

namespace {

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

Gradients transpose_gradient(const GradientContext& c) {
  const auto& permutation = c.attributes_as<TransposeAttributes>().permutation;
  const auto rank = static_cast<std::size_t>(c.shape(0).rank());
  std::vector<int> inverse(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
  }
  return single(transpose(c.dy(), inverse));
}

Gradients pad_gradient(const GradientContext& c) {
  const auto before = prefix(c.attributes_as<PadAttributes>().before, c.shape(0).rank());
  return single(slice(c.dy(), before, dims_of(c.shape(0))));
}

Gradients concat_gradient(const GradientContext& c) {
  const int axis = c.attributes_as<AxisAttributes>().axis;
  std::vector<std::int64_t> begin(static_cast<std::size_t>(c.dy().rank()), 0);
  Gradients result(c.num_inputs());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (c.needs(i)) result[i] = slice(c.dy(), begin, dims_of(c.shape(i)));
    begin[static_cast<std::size_t>(axis)] += c.shape(i).dim(axis);
  }
  return result;
}

/// Differentiates gather(params, indices). Only the rows that were read from `params` have a
/// gradient.
Gradients gather_gradient(const GradientContext& c) {
  const Shape& params = c.shape(0);
  Gradients result(2);
  if (!c.needs(0)) return result;
  const std::int64_t count = c.in(1).num_elements();
  Tensor indices = reshape(c.in(1), Shape{count});
  if (indices.dtype() != DType::kInt64) indices = cast(indices, DType::kInt64);
  const Tensor values = reshape(c.dy(), params.with_dim(0, count));
  result[0] = Gradient(IndexedSlices{values, indices, params});
  return result;
}

Gradients reverse_gradient(const GradientContext& c) {
  std::vector<int> axes;
  for (int axis = 0; axis < c.shape(0).rank(); ++axis) {
    if (c.attributes_as<AxesAttributes>().axes >> axis & 1u) axes.push_back(axis);
  }
  return single(reverse(c.dy(), axes));
}

Gradients cumulative_sum_gradient(const GradientContext& c) {
  const auto& [axis, exclusive, is_reverse] = c.attributes_as<CumulativeSumAttributes>();
  return single(cumulative_sum(c.dy(), {axis, exclusive, !is_reverse}));
}

/// Differentiates top_k(), whose outputs are (values, indices): scatters each value's gradient to
/// the value's position in the input.
Gradients top_k_gradient(const GradientContext& c) {
  const std::int64_t n = c.shape(0).dim(-1);
  const std::int64_t k = c.dy().shape().dim(-1);
  const std::int64_t rows = n == 0 ? 0 : c.shape(0).num_elements() / n;
  std::vector<std::int64_t> row_begins(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < row_begins.size(); ++row) {
    row_begins[row] = static_cast<std::int64_t>(row) * n;
  }
  const Tensor begins = Tensor::from(Shape{rows, 1}, row_begins, c.dy().device());
  const Tensor places = add(reshape(c.out(1), Shape{rows, k}), begins);
  const Tensor flat = scatter_rows(reshape(c.dy(), Shape{rows * k}),
                                   reshape(places, Shape{rows * k}), Shape{rows * n});
  return single(reshape(flat, c.shape(0)));
}

Gradients upsample_grad_gradient(const GradientContext& c) {
  const auto& [factor_h, factor_w, interpolation] = c.attributes_as<UpsampleAttributes>();
  return single(upsample2d(c.dy(), {factor_h, factor_w, interpolation}));
}

/// Differentiates scatter_rows(values, indices).
Gradients scatter_rows_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = gather(c.dy(), c.in(1));
  return result;
}

using C = const GradientContext&;  // alias for the table below

constexpr OpGradient kShapeGradients[] = {
    {OpId::kReshape, [](C c) { return single(reshape(c.dy(), c.shape(0))); }, kNoTensor},
    {OpId::kTranspose, transpose_gradient, kNoTensor},
    {OpId::kSlice, [](C c) { return single(padded(slice_block(c))); }, kNoTensor},
    {OpId::kPad, pad_gradient, kNoTensor},
    {OpId::kConcat, concat_gradient, kNoTensor},
    {OpId::kBroadcastTo, [](C c) { return single(unbroadcast(c, 0, c.dy())); }, kNoTensor},
    {OpId::kGather, gather_gradient, kSecondTensor},
    {OpId::kScatterRows, scatter_rows_gradient, kSecondTensor},
    {OpId::kReverse, reverse_gradient, kNoTensor},
    {OpId::kCumulativeSum, cumulative_sum_gradient, kNoTensor},
    {OpId::kTopK, top_k_gradient, kNoTensor, kSecondTensor},
    {OpId::kUpsample,
     [](C c) {
       return single(upsample2d_grad(c.dy(), c.shape(0), c.attributes_as<UpsampleAttributes>()));
     },
     kNoTensor},
    {OpId::kUpsampleGrad, upsample_grad_gradient, kNoTensor},
};

}  // namespace

std::span<const OpGradient> shape_gradients() { return kShapeGradients; }

}  // namespace tutti::internal
