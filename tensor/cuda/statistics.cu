// Statistics of many tensors at once; the results stay on the device.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "tensor/cuda/batches.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

constexpr int kItems = 96;
constexpr std::int64_t kPerBlock = 4096;  // elements

/// The elements of one tensor.
struct Elements {
  const void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t index = 0;      // index of the result
  std::int64_t first_sum = 0;  // index of the tensor's first block sum

  constexpr std::int64_t num_blocks() const { return (count + kPerBlock - 1) / kPerBlock; }
};
using Batched = Batch<Elements, kItems>;

template <class N>
__device__ __forceinline__ bool is_finite(N value) {
  return value - value == N{0};  // infinity - infinity is NaN
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_non_finite_kernel(const __grid_constant__ Batched batch, unsigned long long* counts) {
  const auto share = batch.share(kPerBlock);
  const Elements& item = batch.items[share.item];
  const T* const x = static_cast<const T*>(item.data);
  const std::int64_t past = share.first + kPerBlock, end = past < item.count ? past : item.count;
  unsigned long long count = 0;
  for (std::int64_t i = share.first + threadIdx.x; i < end; i += kThreads) {
    count += is_finite(number(x[i])) ? 0u : 1u;
  }
  if (count > 0) atomicAdd(&counts[item.index], count);
}

/// Sums the squares of 4,096 elements: each thread adds every 256th square, then Teams::combine()
/// adds the sums of the threads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_of_blocks(const __grid_constant__ Batched batch, double* block_sums) {
  __shared__ double shared[kWarpsOfBlock];
  const auto share = batch.share(kPerBlock);
  const Elements& item = batch.items[share.item];
  const T* const x = static_cast<const T*>(item.data);
  const std::int64_t past = share.first + kPerBlock, end = past < item.count ? past : item.count;
  double sum = 0.0;
  for (std::int64_t i = share.first + threadIdx.x; i < end; i += kThreads) {
    const auto value = static_cast<double>(number(x[i]));
    sum += value * value;
  }
  sum = Teams(static_cast<int>(kThreads)).combine(sum, AddNumbers{}, shared);
  if (threadIdx.x == 0) block_sums[item.first_sum + share.first / kPerBlock] = sum;
}

/// Adds up the partial sums of every item, with one thread block per item.
__global__ void __launch_bounds__(kThreads)
    add_sums(const __grid_constant__ Batched batch, const double* block_sums, double* sums) {
  __shared__ double shared[kWarpsOfBlock];
  const Elements& item = batch.items[blockIdx.x];
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < item.num_blocks(); i += kThreads) {
    sum += block_sums[item.first_sum + i];
  }
  sum = Teams(static_cast<int>(kThreads)).combine(sum, AddNumbers{}, shared);
  if (threadIdx.x == 0) sums[item.index] = sum;
}

/// Calls launch_batch.template operator()<T>(batch) for batches of all floating-point tensors.
template <class Launch>
void for_each_floating_batch(std::span<const Elements> all, std::span<const DeviceTensor> tensors,
                             const char* who, const Launch& launch_batch) {
  for (const DType dtype : kFloatingTypes) {
    std::vector<Elements> items;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].dtype == dtype) items.push_back(all[i]);
    }
    visit_floating(dtype, who, [&]<class T>() {
      for_each_batch<kItems>(
          std::span<const Elements>(items), kPerBlock,
          [](const Elements& item) { return item.count; },
          [&](const Batched& batch) { launch_batch.template operator()<T>(batch); });
    });
  }
}

std::vector<Elements> elements_of(std::span<const DeviceTensor> tensors) {
  std::vector<Elements> all;
  std::int64_t first_sum = 0;
  for (const DeviceTensor& tensor : tensors) {
    all.push_back({tensor.data, tensor.shape.num_elements(), static_cast<std::int64_t>(all.size()),
                   first_sum});
    first_sum += all.back().num_blocks();
  }
  return all;
}

}  // namespace

void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts,
                      cudaStream_t stream) {
  check(cudaMemsetAsync(counts, 0, tensors.size() * sizeof(*counts), stream), "count_non_finite");
  auto* const found = reinterpret_cast<unsigned long long*>(counts);
  const auto launch_batch = [&]<class T>(const Batched& batch) {
    launch(count_non_finite_kernel<T>, batch.num_blocks, kThreads, stream, batch, found);
  };
  for_each_floating_batch(elements_of(tensors), tensors, "count_non_finite", launch_batch);
}

void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums, Workspace& workspace,
                     cudaStream_t stream) {
  if (tensors.empty()) return;
  check(cudaMemsetAsync(sums, 0, tensors.size() * sizeof(*sums), stream), "sums_of_squares");
  const std::vector<Elements> all = elements_of(tensors);
  const std::int64_t num_sums = all.back().first_sum + all.back().num_blocks();
  if (num_sums == 0) return;
  auto* const block_sums =
      static_cast<double*>(workspace.allocate(static_cast<std::size_t>(num_sums) * sizeof(double)));
  const auto launch_batch = [&]<class T>(const Batched& batch) {
    launch_cooperative(sum_squares_of_blocks<T>, batch.num_blocks, kThreads, stream, batch,
                       block_sums);
    launch_cooperative(add_sums, static_cast<unsigned>(batch.count), kThreads, stream, batch,
                       block_sums, sums);
  };
  for_each_floating_batch(all, tensors, "sums_of_squares", launch_batch);
}

}  // namespace tutti::cuda
