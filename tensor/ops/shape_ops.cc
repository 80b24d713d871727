// Operations that give a tensor another shape: reshape and its kin, transpose, broadcast_to.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/shape_ops.h"

#include <algorithm>
#include <numeric>

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

/// `dims` with the one -1 in it, if any, replaced by what is left of x's elements.
Shape inferred_shape(const Operand& x, std::vector<std::int64_t> dims) {
  const std::vector<std::int64_t> asked = dims;
  std::int64_t known = 1;
  std::int64_t* unknown = nullptr;
  for (std::int64_t& dim : dims) {
    if (dim != -1) {
      known *= dim;
    } else if (unknown) {
      fail_op(OpId::kReshape, x.where, "expected at most one -1, got [", join(asked), "]");
    } else {
      unknown = &dim;
    }
  }
  if (!unknown) return Shape(dims);
  const std::int64_t count = x.shape().num_elements();
  if (known <= 0 || count % known != 0) {
    fail_op(OpId::kReshape, x.where, "cannot infer -1; expected dimensions that divide the ", count,
            " elements of ", x.shape(), ", got [", join(asked), "]");
  }
  *unknown = count / known;
  return Shape(dims);
}

}  // namespace

Tensor reshape(const Operand& x, const std::vector<std::int64_t>& dims) {
  defined(OpId::kReshape, x);
  return reshape(x, inferred_shape(x, dims));
}

Tensor reshape(const Operand& x, const Shape& shape) {
  const Tensor& tensor = defined(OpId::kReshape, x);
  if (tensor.num_elements() != shape.num_elements()) {
    fail_op(OpId::kReshape, x.where, "the numbers of elements differ; expected ",
            tensor.num_elements(), " as in ", tensor.shape(), ", got ", shape.num_elements(),
            " in ", shape);
  }
  return dispatch_one({OpId::kReshape, {tensor}, {{shape, tensor.dtype()}}, {}, x.where});
}

Tensor flatten_rows(const Operand& x) {
  const Shape& shape = defined(OpId::kReshape, x).shape();
  if (shape.rank() == 0) {
    fail(ErrorCode::kInvalidArgument, who("flatten_rows", x.where),
         ": expected [batch, ...], got shape []");
  }
  const std::int64_t rest =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
  return reshape(x, Shape{shape.dim(0), rest});
}

Tensor expand_dims(const Operand& x, int axis) {
  std::vector<std::int64_t> dims(defined(OpId::kReshape, x).shape().begin(), x.shape().end());
  dims.insert(dims.begin() + checked_axis("expand_dims", x, axis, x.shape().rank() + 1), 1);
  return reshape(x, Shape(dims));
}

Tensor squeeze(const Operand& x, int axis) {
  const Shape& shape = defined(OpId::kReshape, x).shape();
  axis = checked_axis("squeeze", x, axis, shape.rank());
  if (shape.dim(axis) != 1) {
    fail(ErrorCode::kInvalidArgument, who("squeeze", x.where), ": expected axis ", axis,
         " to have length 1, got shape ", shape);
  }
  return reshape(x, shape.without_axis(axis));
}

Tensor transpose(const Operand& x, const std::vector<int>& permutation) {
  constexpr OpId kOp = OpId::kTranspose;
  const Tensor& tensor = defined(kOp, x);
  const int rank = tensor.rank();
  std::vector<int> order = permutation;
  if (order.empty()) {
    for (int axis = rank - 1; axis >= 0; --axis) order.push_back(axis);
  }
  std::vector<int> sorted = order;
  std::ranges::sort(sorted);
  std::vector<int> expected(static_cast<std::size_t>(rank));
  std::iota(expected.begin(), expected.end(), 0);
  if (sorted != expected) {
    fail_op(kOp, x.where, "expected a permutation of 0 .. ", rank - 1, " for shape ", x.shape(),
            ", got [", join(permutation), "]");
  }
  TransposeAttributes attributes;
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < order.size(); ++i) {
    attributes.permutation[i] = static_cast<std::int8_t>(order[i]);
    dims.push_back(x.shape().dim(order[i]));
  }
  return dispatch_one({kOp, {tensor}, {{Shape(dims), tensor.dtype()}}, attributes, x.where});
}

Tensor broadcast_to(const Operand& x, const Shape& shape) {
  constexpr OpId kOp = OpId::kBroadcastTo;
  const Tensor& tensor = defined(kOp, x);
  if (try_broadcast(tensor.shape(), shape) != shape) {
    fail_op(kOp, x.where, "shapes do not broadcast; expected equal or 1 in each dimension of ",
            tensor.shape(), ", got ", shape);
  }
  return dispatch_one({kOp, {tensor}, {{shape, tensor.dtype()}}, {}, x.where});
}

}  // namespace tutti
