// Operations that slice, split, join and pad tensors, and that gather and scatter rows.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "tensor/op_checks.h"
#include "tensor/tensor_impl.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Slicing and joining: slice, split, concat, pad.

namespace {

using namespace internal;

void require_one_per_axis(OpId op, const Operand& x, const std::vector<std::int64_t>& values,
                          const char* name) {
  if (values.size() == static_cast<std::size_t>(x.shape().rank())) return;
  fail_op(op, x.where, "expected ", x.shape().rank(), " values of ", name, " for shape ", x.shape(),
          ", got [", join(values), "]");
}

/// Splits x along `axis` into parts with the lengths `sizes`, whose sum must be the length of the
/// axis.
std::vector<Tensor> cut(const Operand& x, const std::vector<std::int64_t>& sizes, int axis) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(x.shape().rank()), 0);
  std::vector<std::int64_t> size(x.shape().begin(), x.shape().end());
  const auto at = static_cast<std::size_t>(axis);
  std::vector<Tensor> parts;
  for (std::int64_t length : sizes) {
    size[at] = length;
    parts.push_back(slice(x, begin, size));
    begin[at] += length;
  }
  return parts;
}

int split_axis(const Operand& x, int axis) {
  return checked_axis("split", x, axis, defined(OpId::kSlice, x).rank());
}

/// Throws unless `value` can be joined to `first` along `axis`.
void check_part(const Tensor& first, const Tensor& value, int axis, const SourceLocation& where) {
  require_same_dtype(OpId::kConcat, first, value, where);
  if (value.rank() != first.rank() ||
      value.shape().with_dim(axis, 0) != first.shape().with_dim(axis, 0)) {
    fail_op(OpId::kConcat, where, "expected equal shapes except along axis ", axis, ", got ",
            first.shape(), " and ", value.shape());
  }
}

}  // namespace

Tensor slice(const Operand& x, const std::vector<std::int64_t>& begin,
             const std::vector<std::int64_t>& size) {
  constexpr OpId kOp = OpId::kSlice;
  const Tensor& tensor = defined(kOp, x);
  require_one_per_axis(kOp, x, begin, "begin");
  require_one_per_axis(kOp, x, size, "size");
  SliceAttributes attributes;
  std::vector<std::int64_t> dims = size;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::int64_t length = tensor.shape().dim(static_cast<int>(i));
    if (dims[i] == -1) dims[i] = length - begin[i];
    if (begin[i] < 0 || dims[i] < 0 || begin[i] > length - dims[i]) {
      fail_op(kOp, x.where, "out of range; expected a range within shape ", x.shape(),
              ", got begin [", join(begin), "] and size [", join(size), "]");
    }
    attributes.begin[i] = begin[i];
  }
  return dispatch_one({kOp, {tensor}, {{Shape(dims), tensor.dtype()}}, attributes, x.where});
}

Tensor concat(std::span<const Tensor> values, int axis, SourceLocation where) {
  constexpr OpId kOp = OpId::kConcat;
  if (values.empty()) fail_op(kOp, where, "expected at least one tensor, got none");
  const Operand first_operand(values[0], where);
  const Tensor& first = defined(kOp, first_operand);
  axis = checked_axis(to_string(kOp), first_operand, axis, first.rank());
  std::int64_t length = 0;
  for (const Tensor& value : values) {
    const Operand operand(value, where);
    check_part(first, defined(kOp, operand), axis, where);
    length += value.shape().dim(axis);
  }
  return dispatch_one({kOp,
                       {values.begin(), values.end()},
                       {{first.shape().with_dim(axis, length), first.dtype()}},
                       AxisAttributes{axis},
                       where});
}

std::vector<Tensor> split(const Operand& x, int num_parts, int axis) {
  axis = split_axis(x, axis);
  const std::int64_t length = x.shape().dim(axis);
  if (num_parts <= 0 || length % num_parts != 0) {
    fail(ErrorCode::kInvalidArgument, who("split", x.where), ": expected num_parts to divide ",
         length, ", the length of axis ", axis, " of shape ", x.shape(), ", got ", num_parts,
         "; call split(x, sizes, axis)");
  }
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(num_parts), length / num_parts);
  return cut(x, sizes, axis);
}

std::vector<Tensor> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis) {
  axis = split_axis(x, axis);
  const std::int64_t length = x.shape().dim(axis);
  const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum != length || std::ranges::any_of(sizes, [](std::int64_t size) { return size < 0; })) {
    fail(ErrorCode::kInvalidArgument, who("split", x.where), ": expected sizes that add up to ",
         length, ", the length of axis ", axis, " of shape ", x.shape(), ", got [", join(sizes),
         "] with sum ", sum);
  }
  return cut(x, sizes, axis);
}

Tensor pad(const Operand& x, const std::vector<std::int64_t>& before,
           const std::vector<std::int64_t>& after, double value) {
  constexpr OpId kOp = OpId::kPad;
  const Tensor& tensor = defined(kOp, x);
  require_one_per_axis(kOp, x, before, "before");
  require_one_per_axis(kOp, x, after, "after");
  PadAttributes attributes;
  attributes.value = value;
  std::vector<std::int64_t> dims(tensor.shape().begin(), tensor.shape().end());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (before[i] < 0 || after[i] < 0) {
      fail_op(kOp, x.where, "expected counts >= 0, got before [", join(before), "] and after [",
              join(after), "]; to crop, call slice()");
    }
    attributes.before[i] = before[i];
    dims[i] += before[i] + after[i];
  }
  number_like(kOp, Operand(value, x.where), tensor);  // throws if the dtype cannot hold `value`
  return dispatch_one({kOp, {tensor}, {{Shape(dims), tensor.dtype()}}, attributes, x.where});
}

// Operations with indices: one_hot, gather, scatter_rows, scatter.

Tensor one_hot(const Operand& indices, std::int64_t depth, DType dtype, double on, double off) {
  constexpr OpId kOp = OpId::kOneHot;
  require_index(kOp, indices);
  if (depth < 0) fail_op(kOp, indices.where, "expected a depth >= 0, got ", depth);
  std::vector<std::int64_t> dims(indices.shape().begin(), indices.shape().end());
  dims.push_back(depth);
  return dispatch_one(
      {kOp, {indices.tensor}, {{Shape(dims), dtype}}, OneHotAttributes{on, off}, indices.where});
}

Tensor gather(const Operand& params, const Operand& indices) {
  constexpr OpId kOp = OpId::kGather;
  const Tensor& tensor = defined(kOp, params);
  require_index(kOp, indices);
  if (tensor.rank() == 0) {
    fail_op(kOp, params.where, "expected params of shape [rows, ...], got shape []");
  }
  std::vector<std::int64_t> dims(indices.shape().begin(), indices.shape().end());
  dims.insert(dims.end(), tensor.shape().begin() + 1, tensor.shape().end());
  return dispatch_one(
      {kOp, {tensor, indices.tensor}, {{Shape(dims), tensor.dtype()}}, {}, params.where});
}

Tensor scatter_rows(const Operand& values, const Operand& indices, const Shape& dense_shape) {
  constexpr OpId kOp = OpId::kScatterRows;
  const Tensor& tensor = defined(kOp, values);
  require_index(kOp, indices);
  if (tensor.dtype() == DType::kBool) {
    fail_op(kOp, values.where, "expected a numeric type, got bool; call cast()");
  }
  const bool fits = indices.shape().rank() == 1 && dense_shape.rank() >= 1 &&
                    tensor.shape() == dense_shape.with_dim(0, indices.shape().dim(0));
  if (!fits) {
    fail_op(kOp, values.where, "expected indices [n] and values [n, ...] that fit ", dense_shape,
            ", got indices ", indices.shape(), " and values ", tensor.shape());
  }
  return dispatch_one(
      {kOp, {tensor, indices.tensor}, {{dense_shape, tensor.dtype()}}, {}, values.where});
}

namespace {

/// Returns, for each index, its row number in a tensor whose first `depth` dimensions are merged
/// into one.
Tensor rows_named(const Operand& indices, const Shape& shape, int depth) {
  const Tensor here = cast(indices, DType::kInt64).to(Device{});
  const std::span<const std::int64_t> all = here.host_span<std::int64_t>();
  const auto count = depth == 0
                         ? std::accumulate(indices.shape().begin(), indices.shape().end() - 1,
                                           std::int64_t{1}, std::multiplies<>())
                         : std::ssize(all) / depth;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto index =
        all.subspan(i * static_cast<std::size_t>(depth), static_cast<std::size_t>(depth));
    for (int axis = 0; axis < depth; ++axis) {
      const std::int64_t at = index[static_cast<std::size_t>(axis)];
      if (at < 0 || at >= shape.dim(axis)) {
        fail(ErrorCode::kInvalidArgument, who("scatter", indices.where), ": expected indices in ",
             "0 .. ", shape.dim(axis) - 1, " for axis ", axis, " of shape ", shape, ", got ", at,
             " in [", join(index), "]");
      }
      rows[i] = rows[i] * shape.dim(axis) + at;
    }
  }
  return Tensor::from(Shape{count}, rows, Device{}).to(indices.tensor.device());
}

}  // namespace

Tensor scatter(const Operand& indices, const Operand& values, const Shape& shape) {
  require_index(OpId::kScatterRows, indices);
  defined(OpId::kScatterRows, values);
  const Shape& places = indices.shape();
  const bool has_depth = places.rank() >= 1 && places.dim(-1) <= shape.rank();
  const int depth = has_depth ? static_cast<int>(places.dim(-1)) : 0;
  std::vector<std::int64_t> expected(places.begin(), places.end() - (places.rank() > 0));
  expected.insert(expected.end(), shape.begin() + depth, shape.end());
  if (!has_depth || values.shape() != Shape(expected)) {
    fail(ErrorCode::kInvalidArgument, who("scatter", indices.where), ": expected indices [..., d] ",
         "and values [..., rest of the shape ", shape, " after its first d axes], got indices ",
         places, " and values ", values.shape());
  }
  const Operand rows(rows_named(indices, shape, depth), indices.where);
  std::vector<std::int64_t> flat{1};
  for (int axis = 0; axis < depth; ++axis) flat[0] *= shape.dim(axis);
  flat.insert(flat.end(), shape.begin() + depth, shape.end());
  std::vector<std::int64_t> parts = flat;
  parts[0] = rows.shape().dim(0);
  const Operand flat_values(reshape(values, Shape(parts)), values.where);
  return reshape(Operand(scatter_rows(flat_values, rows, Shape(flat)), values.where), shape);
}

}  // namespace tutti
