// Questions about whole tensors whose answers stay on the device, and division by a number.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/batches.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"
#include "tutti/tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

constexpr int kItems = 96;
constexpr std::int64_t kPerBlock = 4096;  // elements

struct Elements {
  const void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t offset = 0;  // of the first element among all
};

template <class N>
__device__ __forceinline__ bool is_finite(N value) {
  return value - value == N{0};  // infinity - infinity is NaN
}

struct AddWide {
  __device__ double operator()(double a, double b) const { return a + b; }
};

/// found[0] += elements that are not finite; found[1] = the largest ~place of one.
template <class T>
__global__ void __launch_bounds__(kThreads)
    look_for_non_finite(const __grid_constant__ Batch<Elements, kItems> batch,
                        unsigned long long* found) {
  const auto share = batch.share(kPerBlock);
  const Elements& item = batch.items[share.item];
  const T* const x = static_cast<const T*>(item.data);
  const std::int64_t past = share.first + kPerBlock, end = past < item.count ? past : item.count;
  unsigned long long count = 0;
  std::int64_t first = -1;
  for (std::int64_t i = share.first + threadIdx.x; i < end; i += kThreads) {
    if (is_finite(number(x[i]))) continue;
    ++count;
    if (first < 0) first = item.offset + i;
  }
  if (count == 0) return;
  atomicAdd(&found[0], count);
  atomicMax(&found[1], ~static_cast<unsigned long long>(first));
}

/// ~place becomes the place, 0 (none found) becomes -1.
__global__ void finish_search(unsigned long long* found) { found[1] = ~found[1]; }

/// The squares of 4,096 elements: each thread adds every 256th, then the threads along a tree.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_of_blocks(Elements x, std::int64_t num_blocks, double* sums) {
  __shared__ double shared[kWarpsOfBlock];
  const Teams teams(static_cast<int>(kThreads));
  teams.for_each_row(num_blocks, [&](std::int64_t block) {
    const std::int64_t past = (block + 1) * kPerBlock, end = past < x.count ? past : x.count;
    double sum = 0.0;
    for (std::int64_t i = block * kPerBlock + threadIdx.x; i < end; i += kThreads) {
      const auto value = static_cast<double>(number(static_cast<const T*>(x.data)[i]));
      sum += value * value;
    }
    sum = teams.combine(sum, AddWide{}, shared);
    if (threadIdx.x == 0) sums[block] = sum;
  });
}

/// *result (+)= the sums: one block.
__global__ void __launch_bounds__(kThreads)
    add_sums(const double* sums, std::int64_t count, bool accumulates, double* result) {
  __shared__ double shared[kWarpsOfBlock];
  const Teams teams(static_cast<int>(kThreads));
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = teams.combine(sum, AddWide{}, shared);
  if (threadIdx.x == 0) *result = accumulates ? *result + sum : sum;
}

template <class N>
struct DivideBy {
  template <class T>
  __device__ N operator()(T x) const {
    return static_cast<N>(x) / divisor;
  }
  N divisor;
};

}  // namespace

void find_non_finite(std::span<const DeviceTensor> tensors, NonFinite* result,
                     cudaStream_t stream) {
  auto* const found = reinterpret_cast<unsigned long long*>(result);
  check(cudaMemsetAsync(result, 0, sizeof(NonFinite), stream), "find_non_finite");
  std::array<std::vector<Elements>, std::size(kAllDTypes)> by_dtype;
  std::int64_t offset = 0;
  for (const DeviceTensor& tensor : tensors) {
    const std::int64_t count = tensor.shape.num_elements();
    by_dtype[static_cast<std::size_t>(tensor.dtype)].push_back({tensor.data, count, offset});
    offset += count;
  }
  for (const DType dtype : kAllDTypes) {
    const auto& items = by_dtype[static_cast<std::size_t>(dtype)];
    if (items.empty() || !is_floating(dtype)) continue;  // integers are finite
    visit_floating(dtype, "find_non_finite", [&]<class T>() {
      for_each_batch<kItems>(
          std::span<const Elements>(items), kPerBlock,
          [](const Elements& item) { return item.count; },
          [&](const Batch<Elements, kItems>& batch) {
            launch(look_for_non_finite<T>, batch.num_blocks, kThreads, stream, batch, found);
          });
    });
  }
  launch(finish_search, 1, 1, stream, found);
}

void sum_of_squares(const DeviceTensor& tensor, double* result, AccumulateOptions options,
                    Workspace& workspace, cudaStream_t stream) {
  const std::int64_t count = tensor.shape.num_elements();
  const std::int64_t num_blocks = (count + kPerBlock - 1) / kPerBlock;
  auto* const sums = static_cast<double*>(workspace.allocate(
      static_cast<std::size_t>(std::max<std::int64_t>(num_blocks, 1)) * sizeof(double)));
  if (num_blocks > 0) {
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(num_blocks, 65'535));
    visit_floating(tensor.dtype, "sum_of_squares", [&]<class T>() {
      launch_cooperative(sum_squares_of_blocks<T>, blocks, kThreads, stream,
                         Elements{tensor.data, count, 0}, num_blocks, sums);
    });
  }
  launch_cooperative(add_sums, 1, kThreads, stream, sums, num_blocks, options.accumulates, result);
}

void divide(const DeviceTensor& from, double divisor, const DeviceTensor& to, cudaStream_t stream) {
  const Shape flat{from.shape.num_elements()};
  visit_dtype(from.dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      map<1>(DivideBy<double>{divisor}, flat, static_cast<float*>(to.data), {flat}, stream,
             static_cast<const T*>(from.data));
    } else {
      using N = Number<T>;
      map<1>(DivideBy<N>{static_cast<N>(divisor)}, flat, static_cast<T*>(to.data), {flat}, stream,
             static_cast<const T*>(from.data));
    }
  });
}

}  // namespace tutti::cuda
