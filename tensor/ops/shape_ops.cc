// Operations that change shapes, and that repeat, reverse or select elements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/shape_ops.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <unordered_map>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/creation.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

// Operations that change shapes: reshape() and similar, transpose(), broadcast_to().

namespace {

using namespace internal;

/// Returns `dims`, with -1 replaced by the dimension that fits the number of elements of x.
Shape inferred_shape(const Operand& x, std::vector<std::int64_t> dims) {
  const std::vector<std::int64_t> asked = dims;
  std::int64_t known = 1;  // product of known dimensions; 0 if too large
  std::int64_t* unknown = nullptr;
  for (std::int64_t& dim : dims) {
    if (dim != -1) {
      if (__builtin_mul_overflow(known, dim, &known)) known = 0;
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
    fail_op(kOp, x.where,
            "shapes do not broadcast; expected equal sizes or 1 in each dimension of ",
            tensor.shape(), ", got ", shape);
  }
  return dispatch_one({kOp, {tensor}, {{shape, tensor.dtype()}}, {}, x.where});
}

// Operations that repeat, reverse or select elements along an axis.

namespace {

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// Returns the permutation that moves axis `from` to `to` and keeps the order of the other axes.
std::vector<int> moving_axis(int rank, int from, int to) {
  std::vector<int> order(static_cast<std::size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  return order;
}

/// Repeats each element `count` times (new_axis = axis + 1), or the whole axis (new_axis = axis):
/// [.., n, ..] -> [.., n * count, ..].
Tensor repeated(const Operand& x, int axis, std::int64_t count, int new_axis) {
  std::vector<std::int64_t> dims = dims_of(x.shape());
  dims.insert(dims.begin() + new_axis, count);
  const Operand wide(expand_dims(x, new_axis), x.where);
  const Operand copies(broadcast_to(wide, Shape(dims)), x.where);
  return reshape(copies, x.shape().with_dim(axis, x.shape().dim(axis) * count));
}

}  // namespace

Tensor reverse(const Operand& x, const std::vector<int>& axes) {
  constexpr OpId op = OpId::kReverse;
  const Tensor& tensor = defined(op, x);
  AxesAttributes attributes;
  for (int axis : axes) {
    const int place = checked_axis(to_string(op), x, axis, tensor.rank());
    if (attributes.axes >> place & 1u) {
      fail_op(op, x.where, "expected distinct axes for shape ", x.shape(), ", got [", join(axes),
              "]");
    }
    attributes.axes |= 1u << place;
  }
  return dispatch_one({op, {tensor}, {{tensor.shape(), tensor.dtype()}}, attributes, x.where});
}

Tensor roll(const Operand& x, std::int64_t shift, int axis) {
  axis = checked_axis("roll", x, axis, defined(OpId::kSlice, x).rank());
  const std::int64_t length = x.shape().dim(axis);
  if (length == 0) return x.tensor;
  const std::int64_t behind = (shift % length + length) % length;  // elements that wrap around
  const std::vector<Tensor> parts = split(x, {length - behind, behind}, axis);
  return concat({parts[1], parts[0]}, axis, x.where);
}

namespace {

/// Returns x where keep(row, column) is true, else 0.
template <class Keep>
Tensor masked_matrix(const char* name, const Operand& x, Keep keep) {
  const Shape& shape = defined(OpId::kWhere, x).shape();
  if (shape.rank() < 2) {
    fail(ErrorCode::kInvalidArgument, who(name, x.where), ": expected [..., rows, columns], got ",
         "shape ", shape);
  }
  MutableTensor mask({shape.dim(-2), shape.dim(-1)}, DType::kBool, Device{});
  const std::span<bool> kept = mask.span<bool>();
  for (std::int64_t row = 0, i = 0; row < shape.dim(-2); ++row) {
    for (std::int64_t column = 0; column < shape.dim(-1); ++column, ++i) {
      kept[static_cast<std::size_t>(i)] = keep(row, column);
    }
  }
  return where(Operand(mask.freeze().to(x.tensor.device()), x.where), x, 0.0);
}

}  // namespace

Tensor tril(const Operand& x, std::int64_t k) {
  return masked_matrix("tril", x, [k](auto row, auto column) { return column - row <= k; });
}

Tensor triu(const Operand& x, std::int64_t k) {
  return masked_matrix("triu", x, [k](auto row, auto column) { return column - row >= k; });
}

Tensor tile(const Operand& x, const std::vector<std::int64_t>& multiples) {
  const Shape& shape = defined(OpId::kBroadcastTo, x).shape();
  const auto negative = [](std::int64_t value) { return value < 0; };
  if (multiples.size() != static_cast<std::size_t>(shape.rank()) ||
      std::ranges::any_of(multiples, negative)) {
    fail(ErrorCode::kInvalidArgument, who("tile", x.where), ": expected ", shape.rank(),
         " multiples >= 0 for shape ", shape, ", got [", join(multiples), "]");
  }
  Operand result = x;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t count = multiples[static_cast<std::size_t>(axis)];
    if (count != 1) result = Operand(repeated(result, axis, count, axis), x.where);
  }
  return result.tensor;
}

Tensor repeat(const Operand& x, std::int64_t count, int axis) {
  const int rank = defined(OpId::kBroadcastTo, x).rank();
  axis = checked_axis("repeat", x, axis, rank);
  if (count < 0) {
    fail(ErrorCode::kInvalidArgument, who("repeat", x.where), ": expected a count >= 0 for ",
         "shape ", x.shape(), ", got ", count);
  }
  return repeated(x, axis, count, axis + 1);
}

Tensor stack(std::span<const Tensor> values, int axis, SourceLocation where) {
  std::vector<Tensor> parts;
  for (const Tensor& value : values) {
    const Operand operand(value, where);
    const int rank = defined(OpId::kConcat, operand).rank();
    if (value.shape() != values[0].shape()) {
      fail(ErrorCode::kInvalidArgument, who("stack", where), ": expected equal shapes, got ",
           values[0].shape(), " and ", value.shape());
    }
    parts.push_back(expand_dims(operand, checked_axis("stack", operand, axis, rank + 1)));
  }
  return concat(parts, axis, where);
}

std::vector<Tensor> unstack(const Operand& x, int axis) {
  axis = checked_axis("unstack", x, axis, defined(OpId::kSlice, x).rank());
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(x.shape().dim(axis)), 1);
  std::vector<Tensor> parts = split(x, ones, axis);
  for (Tensor& part : parts) part = squeeze(Operand(part, x.where), axis);
  return parts;
}

Tensor gather(const Operand& x, const Operand& indices, int axis) {
  const int rank = defined(OpId::kGather, x).rank();
  require_index(OpId::kGather, indices);
  axis = checked_axis("gather", x, axis, rank);
  if (axis == 0) return gather(x, indices);
  const Operand rows_first(transpose(x, moving_axis(rank, axis, 0)), x.where);
  const Operand flat(reshape(indices, {-1}), indices.where);
  const Operand picked(gather(rows_first, flat), x.where);
  const Operand back(transpose(picked, moving_axis(rank, 0, axis)), x.where);
  std::vector<std::int64_t> dims = dims_of(x.shape());
  dims.erase(dims.begin() + axis);
  dims.insert(dims.begin() + axis, indices.shape().begin(), indices.shape().end());
  return reshape(back, Shape(dims));
}

// Operations whose output shapes depend on values, which are read on the host.

Tensor boolean_mask(const Operand& x, const Operand& mask) {
  const Shape& shape = defined(OpId::kGather, x).shape();
  require_dtype(OpId::kGather, mask, DType::kBool);
  const Shape& lines = mask.shape();
  if (lines.rank() < 1 || lines.rank() > shape.rank() ||
      !std::equal(lines.begin(), lines.end(), shape.begin())) {
    fail(ErrorCode::kInvalidArgument, who("boolean_mask", x.where),
         ": expected a mask whose shape ", "matches the first axes of ", shape, ", got ", lines);
  }
  const Tensor here = mask.tensor.to(Device{});
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; const bool is_kept : here.host_span<bool>()) {
    if (is_kept) rows.push_back(row);
    ++row;
  }
  std::vector<std::int64_t> flat{lines.num_elements()};
  flat.insert(flat.end(), shape.begin() + lines.rank(), shape.end());
  const Tensor indices = Tensor::from(Shape{std::ssize(rows)}, rows, Device{});
  return gather(Operand(reshape(x, Shape(flat)), x.where),
                Operand(indices.to(x.tensor.device()), mask.where));
}

Tensor nonzero(const Operand& x) {
  const Tensor& tensor = defined(OpId::kNotEqual, x);
  const Shape& shape = tensor.shape();
  const Tensor mask =
      tensor.dtype() == DType::kBool ? tensor : not_equal(x, Operand(zeros_like(x), x.where));
  const Tensor here = mask.to(Device{});
  std::vector<std::int64_t> coordinates;
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()), 0);
  for (const bool is_set : here.host_span<bool>()) {
    if (is_set) coordinates.insert(coordinates.end(), at.begin(), at.end());
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      std::int64_t& place = at[static_cast<std::size_t>(axis)];
      if (++place < shape.dim(axis)) break;
      place = 0;
    }
  }
  const std::int64_t rank = shape.rank();
  const auto set = std::ranges::count(here.host_span<bool>(), true);
  return Tensor::from(Shape{set, rank}, coordinates, Device{}).to(tensor.device());
}

UniqueResult unique(const Operand& x) {
  const Tensor& tensor = defined(OpId::kGather, x);
  if (tensor.rank() != 1) {
    fail(ErrorCode::kInvalidArgument, who("unique", x.where), ": expected shape [n], got ",
         tensor.shape(), "; call x.reshape({-1})");
  }
  const Tensor here = tensor.to(Device{});
  std::vector<std::int64_t> firsts, indices;
  visit_dtype(tensor.dtype(), [&]<class T>() {
    using Key = std::conditional_t<sizeof(T) == 2, float, T>;  // float for the 16-bit types
    std::unordered_map<Key, std::int64_t> places;
    for (std::int64_t row = 0; const T& element : here.host_span<T>()) {
      const auto [place, is_new] =
          places.try_emplace(static_cast<Key>(element), std::ssize(firsts));
      if (is_new) firsts.push_back(row);
      indices.push_back(place->second);
      ++row;
    }
  });
  const Tensor rows = Tensor::from(Shape{std::ssize(firsts)}, firsts, Device{});
  const Tensor places = Tensor::from(Shape{std::ssize(indices)}, indices, Device{});
  return {gather(Operand(tensor.detached_reshape(tensor.shape()), x.where),
                 Operand(rows.to(tensor.device()))),
          places.to(tensor.device())};
}

}  // namespace tutti
