// Member operations of Tensor: indexing, reductions, reshape.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using namespace internal;

/// Returns a bound of a Python slice as an index into an axis with `length` elements.
std::int64_t bounded(std::optional<std::int64_t> bound, std::int64_t otherwise,
                     std::int64_t length) {
  if (!bound) return otherwise;
  return std::clamp(*bound < 0 ? *bound + length : *bound, std::int64_t{0}, length);
}

}  // namespace

internal::AxisPart internal::part_of_axis(const Index& index, const Shape& shape, int axis) {
  const std::int64_t length = shape.dim(axis);
  if (index.is_range) {
    const std::int64_t first = bounded(index.range.begin, 0, length);
    const std::int64_t end = bounded(index.range.end, length, length);
    return {first, std::max<std::int64_t>(end - first, 0)};
  }
  if (index.at < -length || index.at >= length) {
    fail(ErrorCode::kInvalidArgument, who("operator[]", index.where), ": expected an index in ",
         -length, " .. ", length - 1, " for axis ", axis, " of shape ", shape, ", got ", index.at);
  }
  return {index.at < 0 ? index.at + length : index.at, 1};
}

Tensor internal::part_of(const Operand& x, std::span<const Index> indices) {
  const Shape& dims = defined(OpId::kSlice, x).shape();
  if (std::ssize(indices) > dims.rank()) {
    fail(ErrorCode::kInvalidArgument, who("operator[]", x.where), ": expected at most ",
         dims.rank(), " indices for shape ", dims, ", got ", indices.size());
  }
  std::vector<std::int64_t> begin(static_cast<std::size_t>(dims.rank()), 0), kept;
  std::vector<std::int64_t> size(dims.begin(), dims.end());
  std::size_t axis = 0;
  for (const Index& index : indices) {
    const AxisPart part = part_of_axis(index, dims, static_cast<int>(axis));
    begin[axis] = part.first;
    size[axis] = part.count;
    if (index.is_range) kept.push_back(part.count);
    ++axis;
  }
  kept.insert(kept.end(), size.begin() + static_cast<std::ptrdiff_t>(axis), size.end());
  return tutti::reshape(Operand(slice(x, begin, size), x.where), Shape(kept));
}

Tensor Tensor::operator[](const Index& index) const { return (*this)[{index}]; }

Tensor Tensor::operator[](std::initializer_list<Index> indices) const {
  const SourceLocation where = indices.size() > 0 ? indices.begin()->where : SourceLocation{};
  return part_of(Operand(*this, where), indices);
}

Tensor Tensor::sum(SourceLocation where) const { return reduce_sum(Operand(*this, where)); }
Tensor Tensor::sum(int axis, bool keep_dims, SourceLocation where) const {
  return reduce_sum(Operand(*this, where), axis, keep_dims);
}
Tensor Tensor::mean(SourceLocation where) const { return reduce_mean(Operand(*this, where)); }
Tensor Tensor::mean(int axis, bool keep_dims, SourceLocation where) const {
  return reduce_mean(Operand(*this, where), axis, keep_dims);
}
Tensor Tensor::max(SourceLocation where) const { return reduce_max(Operand(*this, where)); }
Tensor Tensor::max(int axis, bool keep_dims, SourceLocation where) const {
  return reduce_max(Operand(*this, where), axis, keep_dims);
}
Tensor Tensor::min(SourceLocation where) const { return reduce_min(Operand(*this, where)); }
Tensor Tensor::min(int axis, bool keep_dims, SourceLocation where) const {
  return reduce_min(Operand(*this, where), axis, keep_dims);
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> dims, SourceLocation where) const {
  return tutti::reshape(Operand(*this, where), std::vector<std::int64_t>(dims));
}

}  // namespace tutti
