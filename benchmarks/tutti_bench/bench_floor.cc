// Implements the lower bound: a fused addition over all replicas.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_floor.h"

#include <algorithm>
#include <array>

#include "tensor/cpu/vectorized.h"

namespace tutti::bench {
namespace {

constexpr std::size_t kLine = 16;      // floats in a cache line
constexpr std::size_t kBlock = 2'048;  // floats that fit into the first-level cache

/// Adds the elements of N replicas in registers, and stores the sums in all replicas.
template <std::size_t N>
void add_all(std::span<float* const> replicas, std::size_t begin, std::size_t end) {
  std::array<float*, N> at;
  for (std::size_t r = 0; r < N; ++r) at[r] = replicas[r] + begin;
  const std::size_t count = end - begin;
  internal::vectorized([=]() __attribute__((always_inline)) {
    float* __restrict a = at[0];
    float* __restrict b = at[1];
    float* __restrict c = at[N > 2 ? 2 : 0];
    float* __restrict d = at[N > 3 ? 3 : 0];
    for (std::size_t i = 0; i < count; ++i) {
      float sum = a[i] + b[i];
      if constexpr (N > 2) sum += c[i];
      if constexpr (N > 3) sum += d[i];
      a[i] = sum;
      b[i] = sum;
      if constexpr (N > 2) c[i] = sum;
      if constexpr (N > 3) d[i] = sum;
    }
  });
}

void add_block(std::span<float* const> replicas, std::size_t first, std::size_t count) {
  std::array<float, kBlock> sum;
  float* const total = sum.data();
  std::copy_n(replicas[0] + first, count, total);
  for (float* const replica : replicas.subspan(1)) {
    const float* __restrict addend = replica + first;
    internal::vectorized([=]() __attribute__((always_inline)) {
      for (std::size_t i = 0; i < count; ++i) total[i] += addend[i];
    });
  }
  for (float* const replica : replicas) std::copy_n(total, count, replica + first);
}

}  // namespace

void floor_pass(BenchTeam& team, int thread, std::span<float* const> replicas,
                std::size_t num_bytes) {
  const std::size_t count = num_bytes / sizeof(float);
  const auto num_threads = static_cast<std::size_t>(team.size());
  const std::size_t part = (count / num_threads + kLine - 1) / kLine * kLine;
  const std::size_t begin = std::min(count, part * static_cast<std::size_t>(thread));
  const std::size_t end =
      static_cast<std::size_t>(thread) + 1 == num_threads ? count : std::min(count, begin + part);
  team.barrier().wait();
  if (replicas.size() == 2) {
    add_all<2>(replicas, begin, end);
  } else if (replicas.size() == 3) {
    add_all<3>(replicas, begin, end);
  } else if (replicas.size() == 4) {
    add_all<4>(replicas, begin, end);
  } else {
    for (std::size_t first = begin; first < end; first += kBlock) {
      add_block(replicas, first, std::min(kBlock, end - first));
    }
  }
  team.barrier().wait();
}

}  // namespace tutti::bench
