// Shape of a tensor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// Shape of a tensor: up to eight dimensions, each >= 0; [] is the shape of a scalar. A value type
/// that allocates no memory.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  /// Throws kInvalidArgument for a negative dimension, more than kMaxRank dimensions, or more
  /// elements than an int64 can count (see count()).
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);

  int rank() const { return rank_; }
  /// Returns dimension `axis`, counted from the end if it is negative. Throws kInvalidArgument if
  /// there is no such axis.
  std::int64_t dim(int axis) const;
  std::int64_t operator[](int axis) const { return dim(axis); }
  /// Returns the product of the dimensions; 1 for [].
  std::int64_t num_elements() const;
  /// Returns the product of all nonzero dimensions; nullopt if the product does not fit in an
  /// int64. If it fits, so does the product of any subset of dimensions. Use count() to check
  /// untrusted dimensions.
  static std::optional<std::int64_t> count(std::span<const std::int64_t> dims);

  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + rank_; }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  /// Returns `axis`, which may be negative, converted to 0 .. rank-1. Throws kInvalidArgument,
  /// naming `who`, if it is out of range.
  int normalized_axis(int axis, std::string_view who) const;
  Shape with_dim(int axis, std::int64_t size) const;
  Shape without_axis(int axis) const;
  Shape with_front(std::int64_t size) const;

  /// Returns text such as "[2, 3]".
  std::string to_string() const;
  bool operator==(const Shape& other) const;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// Returns the common shape by numpy's broadcasting rule: dimensions, compared from the last to the
/// first, must be equal or 1. Returns nullopt if they are not.
std::optional<Shape> try_broadcast(const Shape& a, const Shape& b);
/// Same as try_broadcast(), but throws kInvalidArgument, naming `who` and both shapes, instead of
/// returning nullopt.
Shape broadcast(const Shape& a, const Shape& b, std::string_view who);

}  // namespace tutti
