// Sum of gradients and a plain SGD step without leaving the registers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/shared/sgd_pass.h"

#include <algorithm>
#include <array>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kLine = kLineBytes / sizeof(float);
// How far ahead memory is asked for: while a line is updated, the next ones are on their way.
constexpr std::size_t kAhead = 3072 / sizeof(float);
constexpr std::size_t kMostRanks = 8;

struct SgdNumbers {
  float rate, scale, divisor;
  bool mean;
};

std::optional<SgdNumbers> plain_sgd(const UpdateRule& rule, const UpdateScalars& scalars, bool mean,
                                    std::size_t ranks) {
  constexpr std::size_t kRate = 0, kScale = 1, kMomentum = 3;  // places of kSgd's constants
  const std::optional<DeviceRule> known = rule.device_rule(scalars);
  if (!known || known->id != DeviceRuleId::kSgd || known->constants[kMomentum] != 0.0 ||
      known->constants[DeviceRule::kWeightDecay] != 0.0) {
    return std::nullopt;
  }
  return SgdNumbers{static_cast<float>(known->constants[kRate]),
                    static_cast<float>(known->constants[kScale]), static_cast<float>(ranks), mean};
}

bool begin_at_lines(std::span<std::byte* const> weights) {
  return std::ranges::all_of(weights, [](const std::byte* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kLineBytes == 0;
  });
}

/// Element i of all ranks, `count` lines of it; weights[0] are read, too.
template <std::size_t n>
[[gnu::target("avx512f")]] void run_lines(const std::array<const float*, kMostRanks>& gradients,
                                          const std::array<float*, kMostRanks>& weights,
                                          std::size_t count, const SgdNumbers& numbers) {
  const __m512 rate = _mm512_set1_ps(numbers.rate), scale = _mm512_set1_ps(numbers.scale);
  const __m512 divisor = _mm512_set1_ps(numbers.divisor);
  for (std::size_t i = 0; i < count; i += kLine) {
    __m512 sum[n];
    for (std::size_t r = 0; r < n; ++r) {
      __builtin_prefetch(gradients[r] + i + kAhead);
      sum[r] = _mm512_loadu_ps(gradients[r] + i);
    }
    __builtin_prefetch(weights[0] + i + kAhead);
    // The canonical tree: neighbours first, then their sums.
    for (std::size_t step = 1; step < n; step *= 2) {
      for (std::size_t r = 0; r + step < n; r += 2 * step) {
        sum[r] = _mm512_add_ps(sum[r], sum[r + step]);
      }
    }
    if (numbers.mean) sum[0] = _mm512_div_ps(sum[0], divisor);
    const __m512 taken = _mm512_mul_ps(rate, _mm512_mul_ps(sum[0], scale));
    const __m512 updated = _mm512_sub_ps(_mm512_load_ps(weights[0] + i), taken);
    _mm512_store_ps(weights[0] + i, updated);
    for (std::size_t r = 1; r < n; ++r) _mm512_stream_ps(weights[r] + i, updated);
  }
}

template <std::size_t n = 2>
void run_for(std::size_t ranks, const std::array<const float*, kMostRanks>& gradients,
             const std::array<float*, kMostRanks>& weights, std::size_t count,
             const SgdNumbers& numbers) {
  if (ranks == n) return run_lines<n>(gradients, weights, count, numbers);
  if constexpr (n < kMostRanks) run_for<n + 1>(ranks, gradients, weights, count, numbers);
}

}  // namespace

bool sum_and_sgd_past_caches(const UpdateRule& rule, const UpdateScalars& scalars, bool mean,
                             const UpdateRange& range) {
  const std::size_t ranks = range.gradients.size();
  if (widest_vectors() != Vectors::kAvx512 || range.dtype != DType::kFloat32 || ranks < 2 ||
      ranks > kMostRanks || !begin_at_lines(range.weights)) {
    return false;
  }
  for (std::size_t r = 0; r < ranks; ++r) {  // of ranks that share weights, only one may write
    if (std::ranges::count(range.weights, range.weights[r]) != 1) return false;
  }
  const std::optional<SgdNumbers> numbers = plain_sgd(rule, scalars, mean, ranks);
  if (!numbers) return false;
  std::array<const float*, kMostRanks> gradients{};
  std::array<float*, kMostRanks> weights{};
  for (std::size_t r = 0; r < ranks; ++r) {
    gradients[r] = reinterpret_cast<const float*>(range.gradients[r]);
    weights[r] = reinterpret_cast<float*>(range.weights[r]);
  }
  std::swap(weights[0], weights[range.reader]);
  const std::size_t whole = range.count / kLine * kLine;
  run_for(ranks, gradients, weights, whole, *numbers);
  _mm_sfence();  // before others see that the part is done
  for (std::size_t i = whole; i < range.count; ++i) {
    std::array<float, kMostRanks> sum{};
    for (std::size_t r = 0; r < ranks; ++r) sum[r] = gradients[r][i];
    for (std::size_t step = 1; step < ranks; step *= 2) {
      for (std::size_t r = 0; r + step < ranks; r += 2 * step) sum[r] += sum[r + step];
    }
    if (mean) sum[0] /= numbers->divisor;
    const float updated = weights[0][i] - numbers->rate * (sum[0] * numbers->scale);
    for (std::size_t r = 0; r < ranks; ++r) weights[r][i] = updated;
  }
  return true;
}

#else
bool sum_and_sgd_past_caches(const UpdateRule&, const UpdateScalars&, bool, const UpdateRange&) {
  return false;
}
#endif

}  // namespace tutti::internal
