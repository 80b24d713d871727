// Attention in one launch and its gradients in four, with tiles in shared memory.
// SPDX-License-Identifier: Apache-2.0
//
// A block processes a tile of 64 queries (or keys) of one head. It iterates over the tiles of keys
// that the queries attend to (or of queries that attend to the keys), and sums 128 columns of their
// results in registers; wider heads take more blocks, which recompute the same scores. A thread
// computes 4 x 4 scores, so in float32 two 16-byte reads serve 16 products, and arithmetic is the
// bottleneck. As on the CPU, arithmetic is in float64 for float64 inputs and in float32 for all
// others; tensor cores would round the weights of 16-bit inputs to 16 bits. One query takes as long
// as 64, because a single block processes all keys of its head.
//
// Dao et al., "FlashAttention" (arXiv 2205.14135); Milakov and Gimelshein, "Online normalizer
// calculation for softmax" (arXiv 1805.02867).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/cpu/attention_extent.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

// Tiles of matrices in shared memory, and their products.

using Extent = internal::AttentionExtent;

inline Extent extent_of(const KernelCall& call) {
  return Extent(call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape,
                call.attributes_as<AttentionAttributes>());
}

inline constexpr int kTile = 64;              // queries, or keys, per tile
inline constexpr int kOwn = 4;                // rows of a tile per thread; also columns per thread
inline constexpr int kSide = kTile / kOwn;    // threads along a side of a tile
inline constexpr int kColumns = 2 * kTile;    // result columns per block
inline constexpr int kStride = kTile + kOwn;  // row stride in shared memory; keeps packs aligned
static_assert(kSide * kSide == static_cast<int>(kThreads));

/// Number of columns (or rows) of a matrix that are in shared memory at once.
template <class N>
inline constexpr int kSlice = sizeof(N) == 8 ? 8 : 16;
/// Number of blocks per multiprocessor for which there are enough registers. If there are two, one
/// computes while the other waits.
template <class T>
[[maybe_unused]] inline constexpr int kBlocksAtOnce = sizeof(T) == 8 ? 1 : 2;

/// Shared memory of a block. `slices` contains slices of two tiles, slices of the tile that
/// gather() reads, or one value per thread and row. `weights` contains the weights of the gathered
/// rows, column by column.
template <class N>
struct alignas(Pack<N, kOwn>) Shared {
  N slices[2 * kSlice<N> * kStride];
  N weights[kTile * kStride];
};
template <class N>
using Scores = N[kOwn][kOwn];
/// Sums for this thread's rows and columns. A thread owns 4 of every 64 columns, starting at
/// own_column().
template <class N>
using Gathered = N[kOwn][kColumns / kSide];

__device__ __forceinline__ int own_column() { return static_cast<int>(threadIdx.x) % kSide * kOwn; }
__device__ __forceinline__ int own_row() { return static_cast<int>(threadIdx.x) / kSide * kOwn; }

template <class N>
__device__ __forceinline__ Pack<N, kOwn>& pack_at(N* shared) {
  return *reinterpret_cast<Pack<N, kOwn>*>(shared);
}

/// Consecutive rows of a row-major matrix.
template <class T>
struct Tile {
  /// Creates a tile of the rows in [first, first + kTile) that precede `end`.
  __device__ __forceinline__ Tile(const T* matrix, std::int64_t first, std::int64_t end,
                                  std::int64_t row_width)
      : data(matrix + first * row_width),
        width(row_width),
        rows(static_cast<int>(end - first < kTile ? end - first : kTile)) {}

  /// Returns an element; 0 outside the tile.
  __device__ __forceinline__ Number<T> at(int row, std::int64_t column) const {
    return row < rows && column < width ? number(data[row * width + column]) : Number<T>{0};
  }

  const T* data;
  std::int64_t width;
  int rows;
};

/// For this thread's rows, adds the product of row i of a and row j of b to sums[i][j].
template <class T, class N = Number<T>>
__device__ __forceinline__ void add_products(const Tile<T>& a, const Tile<T>& b, N* slices,
                                             Scores<N>& sums) {
  N* const slices_of_b = slices + kSlice<N> * kStride;
  for (std::int64_t first = 0; first < a.width; first += kSlice<N>) {
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kSlice<N>;
         e += static_cast<int>(kThreads)) {
      const int row = e / kSlice<N>, k = e % kSlice<N>;
      slices[k * kStride + row] = a.at(row, first + k);
      slices_of_b[k * kStride + row] = b.at(row, first + k);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSlice<N>; ++k) {
      const auto x = pack_at(slices + k * kStride + own_row());
      const auto y = pack_at(slices_of_b + k * kStride + own_column());
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) sums[i][j] += x.elements[i] * y.elements[j];
    }
  }
}

/// For each row i of this thread, adds the weighted sum of x's rows to sums[i]; reads columns
/// starting at `column`.
template <class T, class N = Number<T>>
__device__ __forceinline__ void gather(const Tile<T>& x, std::int64_t column, Shared<N>& shared,
                                       Gathered<N>& sums) {
  for (int first = 0; first < x.rows; first += kSlice<N>) {
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kSlice<N> * kColumns;
         e += static_cast<int>(kThreads))
      shared.slices[e] = x.at(first + e / kColumns, column + e % kColumns);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kSlice<N>; ++r) {
      const auto w = pack_at(shared.weights + (first + r) * kStride + own_row());
#pragma unroll
      for (int part = 0; part < kColumns; part += kTile) {
        if (column + part >= x.width) break;
        const auto y = pack_at(shared.slices + r * kColumns + part + own_column());
        for (int i = 0; i < kOwn; ++i)
          for (int j = 0; j < kOwn; ++j) sums[i][part / kSide + j] += w.elements[i] * y.elements[j];
      }
    }
  }
}

/// Combines the values of each row across the kSide threads that share the row.
template <class N, class F>
__device__ __forceinline__ void combine_rows(N (&values)[kOwn], const F& f, N* slices) {
  __syncthreads();
  N* const own = slices + own_column() / kOwn * kTile + own_row();
  for (int i = 0; i < kOwn; ++i) own[i] = values[i];
  __syncthreads();
  for (int i = 0; i < kOwn; ++i) values[i] = slices[own_row() + i];
  for (int t = 1; t < kSide; ++t) {
    const auto others = pack_at(slices + t * kTile + own_row());
    for (int i = 0; i < kOwn; ++i) values[i] = f(values[i], others.elements[i]);
  }
}

/// Writes this thread's part of the results, except rows from `end` on and columns from `width` on.
template <class T, class N = Number<T>>
__device__ __forceinline__ void write(const Gathered<N>& sums, std::int64_t first, std::int64_t end,
                                      std::int64_t column, std::int64_t width, T* matrix) {
  for (int i = 0; i < kOwn; ++i) {
    const std::int64_t row = first + own_row() + i;
    for (int k = 0; row < end && k < kColumns / kSide; ++k) {
      const std::int64_t c = column + k / kOwn * kTile + own_column() + k % kOwn;
      if (c < width) matrix[row * width + c] = element<T>(sums[i][k]);
    }
  }
}

/// Work of one block: one tile of a head's rows, and one part of the result's columns.
struct Work {
  __device__ __forceinline__ Work(std::int64_t number, std::int64_t tiles, std::int64_t parts)
      : head(number / parts / tiles),
        first(number / parts % tiles * kTile),
        column(number % parts * kColumns) {}
  std::int64_t head, first, column;
};

constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + kTile - 1) / kTile; }
/// Returns the number of parts, of up to kColumns columns each, into which `width` columns are
/// divided: at least 1, because the sums are needed even without columns.
constexpr std::int64_t parts_of(std::int64_t width) {
  return width == 0 ? 1 : (width + kColumns - 1) / kColumns;
}

inline unsigned grid_of(std::int64_t blocks) {
  return static_cast<unsigned>(std::min(blocks, kSmall - 1));
}

// Attention: an online softmax over tiles of keys.

/// Softmax state of this thread's queries over the keys processed so far. `sum` covers only this
/// thread's keys.
template <class N>
struct RunningSoftmax {
  /// Turns scores into weights, in shared memory, and rescales earlier results to the new largest
  /// scores.
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
      const N sum = running.sum[i];  // 0 if the query attends to no key
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

// Gradients of attention. Scores are recomputed, and normalised with the stored logarithms of their
// sums.
//
// No two blocks add to the same element: the gradients of queries, keys and values are computed in
// separate launches. This takes 8 products of tiles; 5 would suffice if blocks added to each
// other's rows, in any order. In return, the order of additions depends only on the sizes, and a
// block needs registers for only one gradient.

/// Writes to means[i] the sum of weight * gradient over query i's attention weights.
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

/// Inputs of the gradient kernels of attention.
template <class T>
struct GradientInputs {
  const T *queries, *keys, *values, *dy;
  const Number<T>*log_sums, *means;
};
enum class GradientOf { kQuery, kKey, kValue };

/// Computes the weights with which a gradient sums the rows of another matrix. `scores` has a row
/// per query and a column per key for kQuery, and vice versa for kKey and kValue.
template <GradientOf of, class T, class N = Number<T>>
__device__ __forceinline__ void weigh(const Extent& extent, const GradientInputs<T>& in,
                                      std::int64_t head, std::int64_t first_query,
                                      std::int64_t first_key, const Scores<N>& scores,
                                      const Scores<N>& d_shares, Shared<N>& shared) {
  constexpr bool of_query = of == GradientOf::kQuery;
  const N scale = static_cast<N>(extent.attributes.scale);
  first_query += of_query ? own_row() : own_column();
  first_key += of_query ? own_column() : own_row();
  __syncthreads();  // waits until the weights of the previous tile have been used
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

/// Adds to a gradient the contribution of one query tile and one key tile of `head`.
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
      // Queries before `first` attend to none of this block's keys.
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
  (table.set(OpId::kAttention, dtype_of<Ts>(), forward<Ts>), ...);
  (table.set(OpId::kAttentionGrad, dtype_of<Ts>(), backward<Ts>), ...);
}

}  // namespace

void register_attention_kernels(KernelTable& table) { set_floating<TUTTI_FLOATING_TYPES>(table); }

}  // namespace tutti::cuda
