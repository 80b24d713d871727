// Attention in one launch: shares are gathered as tiles of keys come.
// SPDX-License-Identifier: Apache-2.0
//
// Dao et al., "FlashAttention" (arXiv 2205.14135); Milakov and Gimelshein, "Online normalizer
// calculation for softmax" (arXiv 1805.02867).
#include <cmath>
#include <limits>

#include "tensor/cuda/attention_tiles.h"

namespace tutti::cuda {
namespace {

using namespace attention;

/// What is known of this thread's queries from the keys so far. `sum`: of its own keys alone.
template <class N>
struct RunningSoftmax {
  /// Makes scores weights, in shared memory; what was gathered before is brought to the new
  /// largest scores.
  __device__ __forceinline__ void take(const Extent& extent, std::int64_t first_query,
                                       std::int64_t first_key, const Scores<N>& scores,
                                       Shared<N>& shared, Gathered<N>& gathered) {
    N larger[kOwn];
    int seen[kOwn];
    for (int i = 0; i < kOwn; ++i) {
      const std::int64_t keys = extent.keys_seen(first_query + own_row() + i) - first_key;
      seen[i] = static_cast<int>(keys < kTile ? keys : kTile) - own_column();
      larger[i] = top[i];
      for (int j = 0; j < kOwn; ++j)
        if (j < seen[i]) larger[i] = LargerNumber{}(larger[i], scores[i][j]);
    }
    combine_rows(larger, LargerNumber{}, shared.slices);
    for (int i = 0; i < kOwn; ++i) {
      const N correction = top[i] == larger[i] ? N{1} : std::exp(top[i] - larger[i]);
      top[i] = larger[i];
      sum[i] *= correction;
      for (N& value : gathered[i]) value *= correction;
      for (int j = 0; j < kOwn; ++j) {
        const N weight = j < seen[i] ? std::exp(scores[i][j] - top[i]) : N{0};
        sum[i] += weight;
        shared.weights[(own_column() + j) * kStride + own_row() + i] = weight;
      }
    }
  }

  N top[kOwn], sum[kOwn];
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    attend(Extent extent, std::int64_t blocks, const T* queries, const T* keys, const T* values,
           T* results, Number<T>* log_sums) {
  using N = Number<T>;
  __shared__ Shared<N> shared;
  const std::int64_t steps = extent.steps, length = extent.length;
  const N scale = static_cast<N>(extent.attributes.scale);
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Work work(block, tiles_of(steps), parts_of(length));
    const std::int64_t end = work.first + kTile < steps ? work.first + kTile : steps;
    const Tile<T> query(queries + extent.queries_at(work.head), work.first, end, extent.features);
    RunningSoftmax<N> running{};
    for (N& top : running.top) top = -std::numeric_limits<N>::infinity();
    Gathered<N> gathered{};
    const std::int64_t seen = extent.keys_seen(end - 1);
    for (std::int64_t first = 0; first < seen; first += kTile) {
      const Tile<T> key(keys + extent.keys_at(work.head), first, seen, extent.features);
      Scores<N> scores{};
      add_products(query, key, shared.slices, scores);
      for (N(&row)[kOwn] : scores)
        for (N& score : row) score *= scale;
      running.take(extent, work.first, first, scores, shared, gathered);
      const Tile<T> value(values + extent.values_at(work.head), first, seen, length);
      gather(value, work.column, shared, gathered);
    }
    combine_rows(running.sum, AddNumbers{}, shared.slices);
    for (int i = 0; i < kOwn; ++i) {
      const N sum = running.sum[i];  // 0 where there are no keys
      for (N& value : gathered[i]) value = sum == N{0} ? N{0} : value / sum;
      const std::int64_t row = work.first + own_row() + i;
      if (row < end && own_column() == 0 && work.column == 0)
        log_sums[work.head * steps + row] = sum == N{0} ? N{0} : running.top[i] + std::log(sum);
    }
    write(gathered, work.first, end, work.column, length, results + extent.results_at(work.head));
  }
}

template <class T>
void forward(const KernelCall& call) {
  const Extent extent = extent_of(call);
  const std::int64_t blocks = extent.heads * tiles_of(extent.steps) * parts_of(extent.length);
  if (blocks == 0) return;
  launch_cooperative(attend<T>, grid_of(blocks), kThreads, call.stream, extent, blocks,
                     call.in<T>(0), call.in<T>(1), call.in<T>(2), call.out<T>(0),
                     call.out<Number<T>>(1));
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kAttention, dtype_of<Ts>(), forward<Ts>), ...);
}

}  // namespace

void register_attention_kernels(KernelTable& table) {
  set_floating<TUTTI_FLOATING_TYPES>(table);
  register_attention_gradient_kernels(table);
}

}  // namespace tutti::cuda
