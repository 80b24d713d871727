// The fused add.
// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_floor.h"

#include <algorithm>
#include <array>

#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::tools {
namespace {

constexpr std::size_t kLine = 16;      // floats
constexpr std::size_t kBlock = 2'048;  // floats that stay in the first cache

void add_two(float* __restrict a, float* __restrict b, std::size_t count) {
  internal::vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
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
    add_two(replicas[0] + begin, replicas[1] + begin, end - begin);
  } else {
    for (std::size_t first = begin; first < end; first += kBlock) {
      add_block(replicas, first, std::min(kBlock, end - first));
    }
  }
  team.barrier().wait();
}

}  // namespace tutti::tools
