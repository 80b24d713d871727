// Teams of threads that work on one row together: some lanes of a warp, or a whole block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>

#include "tensor/cuda/elements.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;
inline constexpr int kWarpsOfBlock = static_cast<int>(kThreads) / kWarp;

/// An element and its index.
template <class T>
struct Place {
  T value;
  long long index;
};

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <class T>
__device__ __forceinline__ Place<T> shuffle_xor(Place<T> place, int mask) {
  return {shuffle_xor(place.value, mask), shuffle_xor(place.index, mask)};
}

struct AddNumbers {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct LargerNumber {  // NaN wins
  template <class T>
  __device__ T operator()(T a, T b) const {
    return (b > a || b != b) ? b : a;
  }
};

/// A block of kThreads threads, divided into teams of `lanes` threads; `lanes` is a power of two up
/// to 32, or kThreads. All threads of a block must make the same calls.
class Teams {
 public:
  /// Returns the team size for `count` items: the next power of two, but at most a warp, or a whole
  /// block for more than 256 items.
  static int lanes_for(std::int64_t count) {
    if (count > 8 * kWarp) return static_cast<int>(kThreads);
    const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1)));
    return static_cast<int>(std::min<std::uint64_t>(lanes, kWarp));
  }
  static unsigned blocks_for_rows(std::int64_t rows, int lanes) {
    return blocks_for(static_cast<std::size_t>(rows) * static_cast<std::size_t>(lanes));
  }

  __device__ explicit Teams(int lanes) : lanes_(lanes) {}

  __device__ int lanes() const { return lanes_; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % lanes_; }

  /// Calls body(row) for the rows of this team. All teams of a block make the same number of calls,
  /// so `row` may be >= num_rows.
  template <class Body>
  __device__ __forceinline__ void for_each_row(std::int64_t num_rows, const Body& body) const {
    const int teams = static_cast<int>(kThreads) / lanes_;
    for (std::int64_t first = std::int64_t{blockIdx.x} * teams; first < num_rows;
         first += std::int64_t{gridDim.x} * teams) {
      body(first + static_cast<int>(threadIdx.x) / lanes_);
    }
  }

  /// Combines the values of a team in an order that depends only on the number of lanes; every
  /// thread gets the result. `shared` has room for kWarpsOfBlock values in shared memory.
  template <class T, class F>
  __device__ __forceinline__ T combine(T value, const F& f, T* shared) const {
    for (int mask = (lanes_ < kWarp ? lanes_ : kWarp) / 2; mask > 0; mask /= 2) {
      value = f(value, shuffle_xor(value, mask));
    }
    if (lanes_ <= kWarp) return value;
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared[0];
    for (int warp = 1; warp < kWarpsOfBlock; ++warp) value = f(value, shared[warp]);
    __syncthreads();  // all reads end before the next combine() writes
    return value;
  }

 private:
  int lanes_;
};

}  // namespace tutti::cuda
