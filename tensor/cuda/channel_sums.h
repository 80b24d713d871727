// Sums the rows of a matrix [rows, channels] per channel, for statistics and gradients.
// SPDX-License-Identifier: Apache-2.0
//
// For .cu files. Each block sums some of the rows in an order that depends only on the shape; a
// second kernel adds the blocks' sums. Up to kRun terms are added in the type of the computation
// (Number<T>), all other sums in double.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {

constexpr int kRun = 64;
constexpr int kMaxLanes = 32;  // packs of one row that a block processes at once

/// Writes partial [2, splits, channels]: two sums per channel over the rows of split blockIdx.y.
/// terms.add(row, pack, a, b) adds the terms of N channels to a[N] and b[N].
template <class T, int N, class Terms>
__global__ void __launch_bounds__(kThreads)
    sum_rows(Terms terms, std::int64_t rows, std::int64_t rows_per_block, int packs, int lanes,
             double* partial) {
  __shared__ double sums[2][kThreads][N];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % lanes, first_row = thread / lanes;
  const int rows_at_once = static_cast<int>(kThreads) / lanes;
  const int pack = static_cast<int>(blockIdx.x) * lanes + lane;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_block;
  const std::int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  double a[N] = {}, b[N] = {};
  std::int64_t row = begin + first_row;
  std::int64_t left = pack < packs && row < end ? (end - row + rows_at_once - 1) / rows_at_once : 0;
  while (left > 0) {
    const int run = left < kRun ? static_cast<int>(left) : kRun;
    Number<T> run_a[N] = {}, run_b[N] = {};
#pragma unroll 4  // so that several loads are in flight
    for (int i = 0; i < run; ++i) {
      terms.add(row + std::int64_t{i} * rows_at_once, pack, run_a, run_b);
    }
    for (int j = 0; j < N; ++j) {
      a[j] += static_cast<double>(run_a[j]);
      b[j] += static_cast<double>(run_b[j]);
    }
    left -= run;
    row += std::int64_t{run} * rows_at_once;
  }
  for (int j = 0; j < N; ++j) {
    sums[0][thread][j] = a[j];
    sums[1][thread][j] = b[j];
  }
  __syncthreads();
  if (first_row != 0 || pack >= packs) return;
  const std::int64_t channels = std::int64_t{packs} * N;
  const std::int64_t splits = gridDim.y;
  for (int j = 0; j < N; ++j) {
    double total_a = 0.0, total_b = 0.0;
    for (int r = 0; r < rows_at_once; ++r) {
      total_a += sums[0][r * lanes + lane][j];
      total_b += sums[1][r * lanes + lane][j];
    }
    const std::int64_t at = blockIdx.y * channels + std::int64_t{pack} * N + j;
    partial[at] = total_a;
    partial[splits * channels + at] = total_b;
  }
}

constexpr int kCombinedChannels = 32;
constexpr int kCombiningRows = 8;

/// Adds the partial sums, then calls finish(channel, a, b) for each channel.
template <class Finish>
__global__ void combine_sums(const double* partial, std::int64_t splits, std::int64_t channels,
                             Finish finish) {
  __shared__ double sums[2][kCombiningRows][kCombinedChannels];
  const std::int64_t channel = std::int64_t{blockIdx.x} * kCombinedChannels + threadIdx.x;
  double a = 0.0, b = 0.0;
  for (std::int64_t i = threadIdx.y; channel < channels && i < splits; i += kCombiningRows) {
    a += partial[i * channels + channel];
    b += partial[(splits + i) * channels + channel];
  }
  sums[0][threadIdx.y][threadIdx.x] = a;
  sums[1][threadIdx.y][threadIdx.x] = b;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int r = 1; r < kCombiningRows; ++r) {
    a += sums[0][r][threadIdx.x];
    b += sums[1][r][threadIdx.x];
  }
  finish(channel, a, b);
}

/// Launches sum_rows() and combine_sums(). `channels` must be > 0 and a multiple of N; `rows` may
/// be 0.
template <class T, int N, class Terms, class Finish>
void sum_over_rows(std::int64_t rows, std::int64_t channels, const Terms& terms,
                   const Finish& finish, const KernelCall& call) {
  constexpr std::int64_t kWantedBlocks = 1'024, kMaxSplits = 512;
  const std::int64_t packs = channels / N;
  int lanes = 1;
  while (lanes < kMaxLanes && lanes < packs) lanes *= 2;
  const std::int64_t columns = (packs + lanes - 1) / lanes;
  const std::int64_t rows_at_once = static_cast<int>(kThreads) / lanes;
  const std::int64_t useful = (rows + rows_at_once * 4 - 1) / (rows_at_once * 4);
  const std::int64_t splits =
      std::clamp<std::int64_t>(std::min(useful, kWantedBlocks / columns), 1, kMaxSplits);
  const std::int64_t rows_per_block = (rows + splits - 1) / splits;
  auto* const partial = static_cast<double*>(
      call.workspace.allocate(static_cast<std::size_t>(2 * splits * channels) * sizeof(double)));
  launch_cooperative(
      sum_rows<T, N, Terms>, dim3(static_cast<unsigned>(columns), static_cast<unsigned>(splits)),
      kThreads, call.stream, terms, rows, rows_per_block, static_cast<int>(packs), lanes, partial);
  const auto blocks = static_cast<unsigned>((channels + kCombinedChannels - 1) / kCombinedChannels);
  launch_cooperative(combine_sums<Finish>, blocks, dim3(kCombinedChannels, kCombiningRows),
                     call.stream, static_cast<const double*>(partial), splits, channels, finish);
}

}  // namespace tutti::cuda
