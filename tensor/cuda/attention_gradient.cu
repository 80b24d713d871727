// The gradients of attention: scores are computed again, from the logarithms of their sums.
// SPDX-License-Identifier: Apache-2.0
//
// No two blocks add to one number: the gradients of queries, of keys and of values are a launch
// each. That makes 8 products of tiles, where blocks that add to each other's rows, in any order,
// need 5; in return the bits depend on the sizes alone, and a block has registers for one gradient.
#include <cmath>

#include "tensor/cuda/attention_tiles.h"

namespace tutti::cuda {
namespace {

using namespace attention;

/// means[i]: of the gradients of query i's shares, by the shares themselves.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mean_gradients(std::int64_t rows, std::int64_t length, int lanes, const T* results, const T* dy,
                   Number<T>* means) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    N sum{0};
    for (std::int64_t c = teams.lane(); row < rows && c < length; c += teams.lanes())
      sum += number(results[row * length + c]) * number(dy[row * length + c]);
    sum = teams.combine(sum, AddNumbers{}, shared);
    if (row < rows && teams.lane() == 0) means[row] = sum;
  });
}

/// What gradients are computed from.
template <class T>
struct GradientInputs {
  const T *queries, *keys, *values, *dy;
  const Number<T>*log_sums, *means;
};
enum class GradientOf { kQuery, kKey, kValue };

/// The weights by which rows of another matrix are gathered. Scores are those of queries by keys,
/// or of keys by queries.
template <GradientOf of, class T, class N = Number<T>>
__device__ __forceinline__ void weigh(const Extent& extent, const GradientInputs<T>& in,
                                      std::int64_t head, std::int64_t first_query,
                                      std::int64_t first_key, const Scores<N>& scores,
                                      const Scores<N>& d_shares, Shared<N>& shared) {
  constexpr bool of_query = of == GradientOf::kQuery;
  const N scale = static_cast<N>(extent.attributes.scale);
  first_query += of_query ? own_row() : own_column();
  first_key += of_query ? own_column() : own_row();
  __syncthreads();  // the weights of the tile before have been used
  for (int q = 0; q < kOwn; ++q) {
    const std::int64_t query = first_query + q, at = head * extent.steps + query;
    const bool is_there = query < extent.steps;
    const std::int64_t seen = is_there ? extent.keys_seen(query) - first_key : 0;
    const N log_sum = is_there ? in.log_sums[at] : N{0};
    const N mean = of != GradientOf::kValue && is_there ? in.means[at] : N{0};
    for (int k = 0; k < kOwn; ++k) {
      const int row = of_query ? q : k, column = of_query ? k : q;
      N weight{0};
      if (k < seen) {
        weight = std::exp(scale * scores[row][column] - log_sum);
        if constexpr (of != GradientOf::kValue) weight *= (d_shares[row][column] - mean) * scale;
      }
      shared.weights[(own_column() + column) * kStride + own_row() + row] = weight;
    }
  }
}

/// A gradient's tile, from one tile of the queries of `head` and one of its keys.
template <GradientOf of, class T, class N = Number<T>>
__device__ __forceinline__ void add_gradient(const Extent& extent, const GradientInputs<T>& in,
                                             std::int64_t head, std::int64_t first_query,
                                             std::int64_t first_key, std::int64_t column,
                                             Shared<N>& shared, Gathered<N>& gathered) {
  const std::int64_t steps = extent.steps, features = extent.features, length = extent.length;
  const Tile<T> query(in.queries + extent.queries_at(head), first_query, steps, features);
  const Tile<T> dy(in.dy + extent.results_at(head), first_query, steps, length);
  const Tile<T> key(in.keys + extent.keys_at(head), first_key, extent.value_steps, features);
  const Tile<T> value(in.values + extent.values_at(head), first_key, extent.value_steps, length);
  Scores<N> scores{}, d_shares{};
  if constexpr (of == GradientOf::kQuery) {
    add_products(query, key, shared.slices, scores);
    add_products(dy, value, shared.slices, d_shares);
    weigh<of>(extent, in, head, first_query, first_key, scores, d_shares, shared);
    gather(key, column, shared, gathered);
  } else {
    add_products(key, query, shared.slices, scores);
    if constexpr (of == GradientOf::kKey) add_products(value, dy, shared.slices, d_shares);
    weigh<of>(extent, in, head, first_query, first_key, scores, d_shares, shared);
    gather(of == GradientOf::kKey ? query : dy, column, shared, gathered);
  }
}

template <GradientOf of, class T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    differentiate(Extent extent, std::int64_t blocks, GradientInputs<T> in, T* gradient) {
  using N = Number<T>;
  __shared__ Shared<N> shared;
  constexpr bool of_query = of == GradientOf::kQuery;
  const std::int64_t rows = of_query ? extent.steps : extent.value_steps;
  const std::int64_t width = of == GradientOf::kValue ? extent.length : extent.features;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Work work(block, tiles_of(rows), parts_of(width));
    const std::int64_t end = work.first + kTile < rows ? work.first + kTile : rows;
    Gathered<N> gathered{};
    if constexpr (of_query) {
      const std::int64_t seen = extent.keys_seen(end - 1);
      for (std::int64_t key = 0; key < seen; key += kTile)
        add_gradient<of>(extent, in, work.head, work.first, key, work.column, shared, gathered);
    } else {
      // Queries before this one see none of these keys.
      const std::int64_t sees = work.first - extent.attributes.steps_before;
      const std::int64_t first = extent.attributes.is_causal && sees > 0 ? sees / kTile * kTile : 0;
      for (std::int64_t h = 0; h < extent.heads_per_key; ++h) {
        const std::int64_t head = work.head * extent.heads_per_key + h;
        for (std::int64_t query = first; query < extent.steps; query += kTile)
          add_gradient<of>(extent, in, head, query, work.first, work.column, shared, gathered);
      }
    }
    write(gathered, work.first, end, work.column, width, gradient + work.head * rows * width);
  }
}

template <GradientOf of, class T>
void launch_gradient(const KernelCall& call, const Extent& extent, const GradientInputs<T>& in) {
  const DeviceTensor& output = call.outputs[static_cast<std::size_t>(of)];
  const Shape& shape = output.shape;
  const std::int64_t blocks = shape[0] * shape[1] * tiles_of(shape[2]) * parts_of(shape[3]);
  if (blocks == 0) return;
  launch_cooperative(differentiate<of, T>, grid_of(blocks), kThreads, call.stream, extent, blocks,
                     in, static_cast<T*>(output.data));
}

template <class T>
void backward(const KernelCall& call) {
  using N = Number<T>;
  const Extent extent = extent_of(call);
  const std::int64_t rows = extent.heads * extent.steps;
  auto* const means =
      static_cast<N*>(call.workspace.allocate(static_cast<std::size_t>(rows) * sizeof(N)));
  const int lanes = Teams::lanes_for(extent.length);
  if (rows > 0) {
    launch_cooperative(mean_gradients<T>, Teams::blocks_for_rows(rows, lanes), kThreads,
                       call.stream, rows, extent.length, lanes, call.in<T>(3), call.in<T>(5),
                       means);
  }
  const GradientInputs<T> in{call.in<T>(0), call.in<T>(1), call.in<T>(2),
                             call.in<T>(5), call.in<N>(4), means};
  launch_gradient<GradientOf::kQuery>(call, extent, in);
  launch_gradient<GradientOf::kKey>(call, extent, in);
  launch_gradient<GradientOf::kValue>(call, extent, in);
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kAttentionGrad, dtype_of<Ts>(), backward<Ts>), ...);
}

}  // namespace

void register_attention_gradient_kernels(KernelTable& table) {
  set_floating<TUTTI_FLOATING_TYPES>(table);
}

}  // namespace tutti::cuda
