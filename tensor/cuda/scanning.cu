// Cumulative sums and top_k.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

/// x viewed as [outer, length, inner].
struct Scan {
  std::int64_t outer = 1, length = 1, inner = 1;
  bool exclusive = false, reverse = false;
};

// Floating-point values are added in double, as on the CPU.
template <class T>
using ScanSum = std::conditional_t<std::is_integral_v<T>, T, double>;

/// Uses one thread per line; neighbouring threads process adjacent lines.
template <class T>
__global__ void __launch_bounds__(kThreads) scan_lines(Scan s, const T* x, T* y) {
  for (std::int64_t line = thread_number(); line < s.outer * s.inner; line += num_threads()) {
    const std::int64_t row = quotient_of_large(line, s.inner);
    const std::int64_t first = row * s.length * s.inner + (line - row * s.inner);
    ScanSum<T> sum{0};
    for (std::int64_t step = 0; step < s.length; ++step) {
      const std::int64_t at = first + (s.reverse ? s.length - 1 - step : step) * s.inner;
      const auto next = internal::Add{}(sum, static_cast<ScanSum<T>>(number(x[at])));
      y[at] = element<T>(s.exclusive ? sum : next);
      sum = next;
    }
  }
}

/// Returns the sum of the values of this lane and all lanes before it in its warp.
template <class T>
__device__ __forceinline__ T warp_sums(T value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_sync(kAllLanes, value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value = internal::Add{}(before, value);
  }
  return value;
}

/// Uses a block per contiguous row (inner == 1), and processes kThreads elements at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) scan_rows(Scan s, const T* x, T* y) {
  using Sum = std::conditional_t<sizeof(T) == 1, std::int32_t, ScanSum<T>>;
  __shared__ Sum of_warps[kWarpsOfBlock];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (std::int64_t row = blockIdx.x; row < s.outer; row += gridDim.x) {
    Sum before{0};  // sum of the preceding chunks
    for (std::int64_t chunk = 0; chunk < s.length; chunk += kThreads) {
      const std::int64_t step = chunk + threadIdx.x;
      const std::int64_t at = row * s.length + (s.reverse ? s.length - 1 - step : step);
      Sum sum = warp_sums(step < s.length ? static_cast<Sum>(number(x[at])) : Sum{0});
      if (threadIdx.x % kWarp == kWarp - 1) of_warps[warp] = sum;
      __syncthreads();
      Sum of_chunk{0}, of_warps_before{0};
      for (int w = 0; w < kWarpsOfBlock; ++w) {
        if (w == warp) of_warps_before = of_chunk;
        of_chunk = internal::Add{}(of_chunk, of_warps[w]);
      }
      __syncthreads();
      if (s.exclusive) {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        const Sum previous = __shfl_sync(kAllLanes, sum, lane > 0 ? lane - 1 : 0);
        sum = lane > 0 ? previous : Sum{0};
      }
      sum = internal::Add{}(internal::Add{}(before, of_warps_before), sum);
      if (step < s.length) y[at] = element<T>(sum);
      before = internal::Add{}(before, of_chunk);
    }
  }
}

template <class T>
void cumulative_sum(const KernelCall& call) {
  const auto& attributes = call.attributes_as<CumulativeSumAttributes>();
  const Shape& shape = call.inputs[0].shape;
  if (shape.num_elements() == 0) return;
  Scan s{1, shape.dim(attributes.axis), 1, attributes.exclusive, attributes.reverse};
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis < attributes.axis) s.outer *= shape.dim(axis);
    if (axis > attributes.axis) s.inner *= shape.dim(axis);
  }
  if (s.inner == 1 && s.length >= 64) {
    launch_cooperative(scan_rows<T>, static_cast<unsigned>(std::min<std::int64_t>(s.outer, 65'535)),
                       kThreads, call.stream, s, call.in<T>(0), call.out<T>(0));
  } else {
    launch(scan_lines<T>, blocks_for(static_cast<std::size_t>(s.outer * s.inner)), kThreads,
           call.stream, s, call.in<T>(0), call.out<T>(0));
  }
}

/// Returns true if a is larger, or if both are equal and a comes first. NaN is larger than all
/// numbers.
template <class V>
__device__ __forceinline__ bool comes_before(Place<V> a, Place<V> b) {
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (a_is_nan || a.value == b.value) return a.index < b.index;
  return a.value > b.value;
}

template <class V>
struct Front {
  __device__ Place<V> operator()(Place<V> a, Place<V> b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    return comes_before(a, b) ? a : b;
  }
};

/// Uses one team per row. In k passes over the row, which stays in the cache, the team finds the
/// first k elements in descending order, one per pass.
template <class T>
__global__ void __launch_bounds__(kThreads)
    top_k_kernel(std::int64_t rows, std::int64_t n, std::int64_t k, int lanes, const T* x,
                 T* values, std::int64_t* indices) {
  using V = std::conditional_t<sizeof(T) == 1, std::int32_t, Number<T>>;
  __shared__ Place<V> shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    Place<V> last{V{0}, -1};
    for (std::int64_t place = 0; place < k; ++place) {
      Place<V> best{V{0}, -1};
      for (std::int64_t i = teams.lane(); row < rows && i < n; i += lanes) {
        const Place<V> candidate{static_cast<V>(number(x[row * n + i])), static_cast<long long>(i)};
        if (last.index < 0 || comes_before(last, candidate)) best = Front<V>{}(best, candidate);
      }
      last = teams.combine(best, Front<V>{}, shared);
      if (row < rows && teams.lane() == 0) {
        indices[row * k + place] = last.index;
        values[row * k + place] = x[row * n + last.index];
      }
    }
  });
}

template <class T>
void top_k(const KernelCall& call) {
  const std::int64_t n = call.inputs[0].shape.dim(-1), k = call.outputs[0].shape.dim(-1);
  if (call.outputs[0].shape.num_elements() == 0) return;
  const std::int64_t rows = call.outputs[0].shape.num_elements() / k;
  const int lanes = Teams::lanes_for(n);
  launch_cooperative(top_k_kernel<T>, Teams::blocks_for_rows(rows, lanes), kThreads, call.stream,
                     rows, n, k, lanes, call.in<T>(0), call.out<T>(0), call.out<std::int64_t>(1));
}

template <class... Ts>
void set_numbers(KernelTable& table) {
  (table.set(OpId::kCumulativeSum, dtype_of<Ts>(), cumulative_sum<Ts>), ...);
  (table.set(OpId::kTopK, dtype_of<Ts>(), top_k<Ts>), ...);
}

}  // namespace

void register_scanning_kernels(KernelTable& table) { set_numbers<TUTTI_NUMBER_TYPES>(table); }

}  // namespace tutti::cuda
