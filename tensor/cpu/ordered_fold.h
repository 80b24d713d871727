// Order in which the CPU's reductions combine elements. The order depends only on the number of
// elements, so equal elements always give bit-identical results.
// SPDX-License-Identifier: Apache-2.0
//
// A sequence is divided into blocks of kFoldBlock elements. Within a block, element i belongs to
// lane i % kFoldLanes. Each lane starts with the identity and combines its elements in order; then
// the upper half of the lanes is combined into the lower half until only one lane is left. The
// results of the blocks are combined as in a binary counter: pairs of adjacent results, then pairs
// of these combined results, and finally the remaining ones from the last to the first. The
// rounding error of a sum grows with kFoldBlock / kFoldLanes and the logarithm of the number of
// blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "tensor/cpu/elementwise_functions.h"

namespace tutti::internal {

inline constexpr std::int64_t kFoldBlock = 1024;
inline constexpr std::int64_t kFoldLanes = 16;
inline constexpr int kMaxFoldLevels = 54;  // 2^54 blocks

/// Returns the identity element of a function, which is the result of reducing no elements.
template <class T>
constexpr T identity(Add) {
  return T{0};
}
template <class T>
constexpr T identity(Multiply) {
  return T{1};
}
template <class T>
constexpr T identity(Maximum) {
  if constexpr (std::is_floating_point_v<T>)
    return -std::numeric_limits<T>::infinity();
  else
    return std::numeric_limits<T>::lowest();
}
template <class T>
constexpr T identity(Minimum) {
  if constexpr (std::is_floating_point_v<T>)
    return std::numeric_limits<T>::infinity();
  else
    return std::numeric_limits<T>::max();
}
template <class T>
constexpr T identity(LogicalOr) {
  return false;
}
template <class T>
constexpr T identity(LogicalAnd) {
  return true;
}

/// Folds a block of at most kFoldBlock elements.
template <class Function, class T>
[[gnu::always_inline]] inline T fold_block(const T* x, std::int64_t count) {
  const Function function;
  std::array<T, kFoldLanes> lanes;
  lanes.fill(identity<T>(function));
  std::int64_t i = 0;
  for (; i + kFoldLanes <= count; i += kFoldLanes) {
    for (std::int64_t lane = 0; lane < kFoldLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] =
          function(lanes[static_cast<std::size_t>(lane)], x[i + lane]);
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) lanes[lane] = function(lanes[lane], x[i]);
  for (std::size_t width = kFoldLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) {
      lanes[lane] = function(lanes[lane], lanes[lane + width]);
    }
  }
  return lanes[0];
}

/// Combines the results of blocks. add() must be called for the blocks in order.
template <class Function, class T>
class BlockCounter {
 public:
  void add(T value) {
    for (std::uint64_t bits = num_blocks_++; bits & 1; bits >>= 1) {
      value = Function{}(levels_[--top_], value);
    }
    levels_[top_++] = value;
  }
  T result() {
    if (top_ == 0) return identity<T>(Function{});
    T value = levels_[--top_];
    while (top_ > 0) value = Function{}(levels_[--top_], value);
    return value;
  }

 private:
  std::array<T, kMaxFoldLevels> levels_;
  std::size_t top_ = 0;
  std::uint64_t num_blocks_ = 0;
};

/// Folds `count` elements in the order above.
template <class Function, class T>
[[gnu::always_inline]] inline T ordered_fold(const T* x, std::int64_t count) {
  if (count <= kFoldBlock) return fold_block<Function>(x, count);
  BlockCounter<Function, T> blocks;
  for (std::int64_t i = 0; i < count; i += kFoldBlock) {
    blocks.add(fold_block<Function>(x + i, std::min(kFoldBlock, count - i)));
  }
  return blocks.result();
}

}  // namespace tutti::internal
