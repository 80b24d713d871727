// The pass over memory, by hand.
// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_update_floor.h"

#include <algorithm>
#include <array>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::tools {
namespace {

constexpr std::size_t kLine = 16;         // floats
constexpr std::size_t kBlock = 2'048;     // floats that stay in the first cache
constexpr std::size_t kAhead = 48;        // lines that are asked for before they are needed
constexpr std::size_t kCaches = 4 << 20;  // floats of weights that caches may keep for the next use

struct Part {
  std::size_t begin, end, reader;
};

[[gnu::always_inline]] inline void ask_ahead(const UpdateFloorBuffers& buffers, std::size_t reader,
                                             std::size_t i) {
  const std::size_t place = i + kAhead * kLine;
  if (place >= buffers.count) return;
  for (const float* gradients : buffers.gradients) __builtin_prefetch(gradients + place);
  __builtin_prefetch(buffers.weights[reader] + place);
}

void pass_in_caches(const UpdateFloorBuffers& buffers, const Part& part, float rate) {
  std::array<float, kBlock> sums;
  float* const sum = sums.data();
  for (std::size_t first = part.begin; first < part.end; first += kBlock) {
    const std::size_t count = std::min(kBlock, part.end - first);
    float* const own = buffers.weights[part.reader] + first;
    std::copy_n(buffers.gradients[0] + first, count, sum);
    for (const float* gradients : buffers.gradients.subspan(1)) {
      const float* __restrict addend = gradients + first;
      internal::vectorized([=]() __attribute__((always_inline)) {
        for (std::size_t i = 0; i < count; ++i) sum[i] += addend[i];
      });
    }
    internal::vectorized([=]() __attribute__((always_inline)) {
      float* __restrict weights = own;
      for (std::size_t i = 0; i < count; ++i) weights[i] -= rate * sum[i];
    });
    for (float* const weights : buffers.weights) {
      if (weights + first != own) std::copy_n(own, count, weights + first);
    }
  }
}

#if defined(__x86_64__)
// Whole lines; copies go past the caches, which would read each line before it is overwritten.
[[gnu::target("avx512f")]] void pass_past_caches(const UpdateFloorBuffers& buffers,
                                                 const Part& part, float rate) {
  const __m512 rates = _mm512_set1_ps(rate);
  float* const own = buffers.weights[part.reader];
  for (std::size_t i = part.begin; i < part.end; i += kLine) {
    ask_ahead(buffers, part.reader, i);
    __m512 sum = _mm512_load_ps(buffers.gradients[0] + i);
    for (const float* gradients : buffers.gradients.subspan(1)) {
      sum = _mm512_add_ps(sum, _mm512_load_ps(gradients + i));
    }
    const __m512 updated = _mm512_sub_ps(_mm512_load_ps(own + i), _mm512_mul_ps(rates, sum));
    _mm512_store_ps(own + i, updated);
    for (float* const weights : buffers.weights) {
      if (weights != own) _mm512_stream_ps(weights + i, updated);
    }
  }
  _mm_sfence();
}

bool can_go_past_caches() { return internal::widest_vectors() == internal::Vectors::kAvx512; }
#else
void pass_past_caches(const UpdateFloorBuffers& buffers, const Part& part, float rate) {
  pass_in_caches(buffers, part, rate);
}
bool can_go_past_caches() { return false; }
#endif

}  // namespace

void update_floor_pass(BenchTeam& team, int thread, const UpdateFloorBuffers& buffers, float rate) {
  const auto t = static_cast<std::size_t>(thread), n = static_cast<std::size_t>(team.size());
  const std::size_t lines = buffers.count / kLine;
  const Part part{lines * t / n * kLine, t + 1 == n ? buffers.count : lines * (t + 1) / n * kLine,
                  t % buffers.weights.size()};
  team.barrier().wait();
  if (buffers.count * buffers.weights.size() > kCaches && can_go_past_caches()) {
    const std::size_t whole = part.begin + (part.end - part.begin) / kLine * kLine;
    pass_past_caches(buffers, {part.begin, whole, part.reader}, rate);
    pass_in_caches(buffers, {whole, part.end, part.reader}, rate);
  } else {
    pass_in_caches(buffers, part, rate);
  }
  team.barrier().wait();
}

}  // namespace tutti::tools
