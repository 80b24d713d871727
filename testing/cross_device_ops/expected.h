// The elements that ranks bring, each a pure function of case, rank and index; and what they
// combine to, computed slowly and apart from the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/testing/cross_device_ops/case.h"

namespace tutti::conformance {

/// A number of which every bit depends on every bit of `x` (the finalizer of SplitMix64, Steele,
/// Lea and Flood 2014).
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Makes the values of one case.
class Values {
 public:
  explicit Values(const Case& c)
      : key_(mixed(c.seed ^ mixed(c.count ^ static_cast<std::uint64_t>(c.world) << 40))),
        op_(c.op),
        world_(c.world),
        bool_(c.dtype == DType::kBool),
        special_(c.check == Check::kSpecialValues) {}

  /// T is what buffers of the type hold: std::uint8_t for bool. Sums and products stay finite, and
  /// products of integers do not run into 0.
  template <class T>
  T at(int rank, std::size_t index) const {
    const std::uint64_t bits = mixed(key_ ^ mixed(index) ^ static_cast<std::uint64_t>(rank) << 56);
    if constexpr (std::is_integral_v<T>) {
      if (bool_) return static_cast<T>(bits & 1);
      return static_cast<T>(op_ == ReduceOp::kProduct ? bits | 1 : bits);
    } else {
      return T(special_ ? special(rank, index, bits) : plain(index, bits));
    }
  }

 private:
  double plain(std::size_t index, std::uint64_t bits) const {
    const double uniform = static_cast<double>(bits >> 11) * 0x1p-53;  // [0, 1)
    if (op_ == ReduceOp::kProduct) return (bits & 1) != 0 ? -0.6 - uniform : 0.6 + uniform;
    return (2 * uniform - 1) * static_cast<double>(1 << index % 9);
  }
  /// Rows that only one order or one rank gets wrong, then anything.
  double special(int rank, std::size_t index, std::uint64_t bits) const {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (index % 8) {
      case 0:
        return -0.0;
      case 1:
        return rank == 0 ? kNan : plain(index, bits);
      case 2:
        return rank == world_ - 1 ? kNan : plain(index, bits);
      case 3:
        return (rank + static_cast<int>(index / 8)) % 2 == 0 ? 0.0 : -0.0;
      default:
        break;
    }
    constexpr double kSome[] = {kNan, kInfinity, -kInfinity, 0.0, -0.0, 0x1p-24, -0x1p-24, 1.0};
    return bits % 16 < std::size(kSome) ? kSome[bits % 16] : plain(index, bits >> 4 | bits << 60);
  }

  std::uint64_t key_;
  ReduceOp op_;
  int world_;
  bool bool_;
  bool special_;
};

/// Calls `visitor.template operator()<T>()` with the type that holds an element: bool is a byte.
template <class Visitor>
decltype(auto) visit_stored(DType dtype, Visitor&& visitor) {
  return visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return visitor.template operator()<std::uint8_t>();
    } else {
      return visitor.template operator()<T>();
    }
  });
}

/// Nothing when `got` is a right combination of `values` (one per rank); else what was expected.
/// Integers are exact modulo 2^bits. Floating numbers lie within the rounding error of any order of
/// float additions (16-bit types: added as float32, rounded once); for kCanonical they have the
/// bits of the tree. NaN where one of the values is NaN, or inf - inf, or 0 * inf. For what buffers
/// of a type hold, bool aside.
template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got);

}  // namespace tutti::conformance
