// Gradients of operations that move elements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// The first `rank` entries.
template <class Array>
auto prefix(const Array& values, int rank) {
  return std::vector<std::int64_t>(values.begin(), values.begin() + rank);
}

}  // namespace

Gradients reshape_gradient(const GradientContext& c) { return single(reshape(c.dy(), c.shape(0))); }

Gradients transpose_gradient(const GradientContext& c) {
  const auto& permutation = c.attributes_as<TransposeAttributes>().permutation;
  const auto rank = static_cast<std::size_t>(c.shape(0).rank());
  std::vector<int> inverse(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
  }
  return single(transpose(c.dy(), inverse));
}

Gradients slice_gradient(const GradientContext& c) {
  const auto before = prefix(c.attributes_as<SliceAttributes>().begin, c.shape(0).rank());
  std::vector<std::int64_t> after;
  for (int axis = 0; axis < c.shape(0).rank(); ++axis) {
    after.push_back(c.shape(0).dim(axis) - before[static_cast<std::size_t>(axis)] -
                    c.dy().shape().dim(axis));
  }
  return single(pad(c.dy(), before, after));
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

Gradients broadcast_to_gradient(const GradientContext& c) {
  return single(unbroadcast(c, 0, c.dy()));
}

/// Inputs (params, indices). Only the rows that were read get a gradient.
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

/// Inputs (values, indices).
Gradients scatter_rows_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = gather(c.dy(), c.in(1));
  return result;
}

}  // namespace tutti::internal
