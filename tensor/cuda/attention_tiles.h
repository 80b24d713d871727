// Tiles of matrices in shared memory, and their products: what attention is made of on GPUs.
// SPDX-License-Identifier: Apache-2.0
//
// A block has a tile of 64 queries (or keys) of one head, goes over the tiles of keys (or queries)
// that they meet, and gathers 128 columns of their results in registers; wider heads take more
// blocks, which compute the same scores. A thread has 4 x 4 scores, so that two reads of 16 bytes
// serve 16 products, and arithmetic is the limit, by count. It is in float32 (float64) for every
// type, as on the CPU; tensor cores would have the shares of 16-bit numbers rounded before they are
// used. One query takes the time of 64: its block is alone with all keys of its head.
#pragma once

#include <algorithm>

#include "tensor/cpu/attention_extent.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda::attention {

using Extent = internal::AttentionExtent;

inline Extent extent_of(const KernelCall& call) {
  return Extent(call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape,
                call.attributes_as<AttentionAttributes>());
}

inline constexpr int kTile = 64;              // queries, and keys, of a tile
inline constexpr int kOwn = 4;                // rows, and columns, of a tile that are one thread's
inline constexpr int kSide = kTile / kOwn;    // threads along a side of a tile
inline constexpr int kColumns = 2 * kTile;    // of results that a block gathers
inline constexpr int kStride = kTile + kOwn;  // of tiles in shared memory: packs stay aligned
static_assert(kSide * kSide == static_cast<int>(kThreads));

/// Columns (or rows) of a matrix that are in shared memory at once.
template <class N>
inline constexpr int kSlice = sizeof(N) == 8 ? 8 : 16;
/// Blocks that a multiprocessor has registers for: while one waits the other calculates.
template <class T>
inline constexpr int kBlocksAtOnce = sizeof(T) == 8 ? 1 : 2;

/// What a block shares: slices of two tiles, or of one that is gathered from, or a value for each
/// thread and row; and the weights, column by column, by which rows are gathered.
template <class N>
struct alignas(Pack<N, kOwn>) Shared {
  N slices[2 * kSlice<N> * kStride];
  N weights[kTile * kStride];
};
template <class N>
using Scores = N[kOwn][kOwn];
/// Of this thread's rows: columns own_column() .. + 3 of each 64.
template <class N>
using Gathered = N[kOwn][kColumns / kSide];

__device__ __forceinline__ int own_column() { return static_cast<int>(threadIdx.x) % kSide * kOwn; }
__device__ __forceinline__ int own_row() { return static_cast<int>(threadIdx.x) / kSide * kOwn; }

template <class N>
__device__ __forceinline__ Pack<N, kOwn>& pack_at(N* shared) {
  return *reinterpret_cast<Pack<N, kOwn>*>(shared);
}

/// Some rows of a row-major matrix.
template <class T>
struct Tile {
  /// Those of rows [first, first + kTile) that are before `end`.
  __device__ __forceinline__ Tile(const T* matrix, std::int64_t first, std::int64_t end,
                                  std::int64_t row_width)
      : data(matrix + first * row_width),
        width(row_width),
        rows(static_cast<int>(end - first < kTile ? end - first : kTile)) {}

  /// 0 beyond the tile.
  __device__ __forceinline__ Number<T> at(int row, std::int64_t column) const {
    return row < rows && column < width ? number(data[row * width + column]) : Number<T>{0};
  }

  const T* data;
  std::int64_t width;
  int rows;
};

/// sums[i][j] += row i of a times row j of b, of this thread's rows.
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

/// sums[i] += the rows of x, columns from `column` on, each times its weight for row i.
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

/// One value for each row: those of the kSide threads that have a part of it, combined.
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

/// Writes this thread's part of rows and columns that exist.
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

/// What one block does of so many tiles of each head, each in so many parts of its columns.
struct Work {
  __device__ __forceinline__ Work(std::int64_t number, std::int64_t tiles, std::int64_t parts)
      : head(number / parts / tiles),
        first(number / parts % tiles * kTile),
        column(number % parts * kColumns) {}
  std::int64_t head, first, column;
};

constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + kTile - 1) / kTile; }
/// One of no columns, too: sums are wanted all the same.
constexpr std::int64_t parts_of(std::int64_t width) {
  return width == 0 ? 1 : (width + kColumns - 1) / kColumns;
}

inline unsigned grid_of(std::int64_t blocks) {
  return static_cast<unsigned>(std::min(blocks, kSmall - 1));
}

}  // namespace tutti::cuda::attention
