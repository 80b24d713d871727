// Shapes: checks, axes, and numpy's broadcasting rule.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/shape.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) {
  if (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    fail(ErrorCode::kInvalidArgument, "Shape: expected at most ", kMaxRank, " dimensions, got [",
         join(dims), "]");
  }
  if (std::any_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim < 0; })) {
    fail(ErrorCode::kInvalidArgument, "Shape: expected dimensions >= 0, got [", join(dims), "]");
  }
  if (!count(dims)) {
    fail(ErrorCode::kInvalidArgument,
         "Shape: expected no more elements than an int64 can count, got [", join(dims), "]");
  }
  std::copy(dims.begin(), dims.end(), dims_.begin());
  rank_ = static_cast<int>(dims.size());
}

std::int64_t Shape::dim(int axis) const {
  return dims_[static_cast<std::size_t>(normalized_axis(axis, "Shape::dim"))];
}

std::int64_t Shape::num_elements() const {
  std::int64_t product = 1;
  for (std::int64_t dim : dims()) product *= dim;
  return product;
}

std::optional<std::int64_t> Shape::count(std::span<const std::int64_t> dims) {
  std::int64_t product = 1;
  for (std::int64_t dim : dims) {
    if (dim != 0 && __builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

int Shape::normalized_axis(int axis, std::string_view who) const {
  if (axis < -rank_ || axis >= rank_) {
    fail(ErrorCode::kInvalidArgument, who, ": axis ", axis, " is out of range; expected -", rank_,
         " .. ", rank_ - 1, " for shape ", to_string());
  }
  return axis < 0 ? axis + rank_ : axis;
}

Shape Shape::with_dim(int axis, std::int64_t size) const {
  std::array<std::int64_t, kMaxRank> dims = dims_;
  dims[static_cast<std::size_t>(normalized_axis(axis, "Shape::with_dim"))] = size;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_)));
}

Shape Shape::without_axis(int axis) const {
  axis = normalized_axis(axis, "Shape::without_axis");
  Shape result = *this;
  std::copy(result.dims_.begin() + axis + 1, result.dims_.end(), result.dims_.begin() + axis);
  result.dims_[--result.rank_] = 0;
  return result;
}

Shape Shape::with_front(std::int64_t size) const {
  std::array<std::int64_t, kMaxRank + 1> dims{};
  dims[0] = size;
  std::copy(begin(), end(), dims.begin() + 1);
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_) + 1));
}

std::string Shape::to_string() const { return "[" + join(dims()) + "]"; }

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.to_string(); }

std::optional<Shape> try_broadcast(const Shape& a, const Shape& b) {
  if (a == b) return a;
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  const int rank = std::max(a.rank(), b.rank());
  for (int i = 0; i < rank; ++i) {
    const int axis_a = a.rank() - rank + i;
    const int axis_b = b.rank() - rank + i;
    const std::int64_t dim_a = axis_a < 0 ? 1 : a.begin()[axis_a];
    const std::int64_t dim_b = axis_b < 0 ? 1 : b.begin()[axis_b];
    if (dim_a != dim_b && dim_a != 1 && dim_b != 1) return std::nullopt;
    dims[static_cast<std::size_t>(i)] = dim_a == 1 ? dim_b : dim_a;
  }
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view who) {
  if (std::optional<Shape> shape = try_broadcast(a, b)) return *shape;
  fail(ErrorCode::kInvalidArgument, who,
       ": shapes do not broadcast; expected equal sizes or 1 in each dimension, got ", a, " and ",
       b, "; call reshape() or expand_dims()");
}

}  // namespace tutti
