// Attention on floats, computed block by block with oneDNN's matrix products and an online softmax.
// SPDX-License-Identifier: Apache-2.0
//
// Dao et al., "FlashAttention" (arXiv 2205.14135). Only one block of scores exists at a time. The
// backward pass recomputes the scores, and their softmax weights from the log-sum-exp that the
// forward pass stores for each query. The blocks are processed in an order that depends only on the
// sizes.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tensor/cpu/attention_extent.h"
#include "tensor/cpu/onednn/engine.h"
#include "tensor/cpu/registration.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

constexpr std::int64_t kQueriesOfBlock = 64, kKeysOfBlock = 128;
constexpr std::int64_t kScoreLanes = 16;
using ScoreLanes = std::array<float, kScoreLanes>;

/// Computes c [m, n] = alpha * a * b + beta * c, row-major; `lda` etc. are row strides in elements.
void multiply(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
              float beta, float* c, std::int64_t ldc) {
  const auto status =
      dnnl_sgemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  TUTTI_CHECK(status == dnnl_success, "attention: oneDNN's sgemm failed with status ",
              static_cast<int>(status));
}

/// Returns e^x for x up to about 0, accurate to two units in the last place; 0 below -87. Uses
/// Cephes' polynomial, without branches or calls, so that loops can be vectorized.
[[gnu::always_inline]] inline float exp_of_score(float x) {
  constexpr float kLowest = -87.0f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23; the addition rounds to an integer
  const float bounded = x < kLowest ? kLowest : x;
  const float rounded = bounded * std::numbers::log2e_v<float> + kRounder;
  const float twos = rounded - kRounder;
  const float rest = (bounded - twos * 0.693359375f) + twos * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  const float fraction = series * rest * rest + rest + 1.0f;
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(kRounder) + 127u;
  const float power = fraction * std::bit_cast<float>(exponent << 23);
  return x < kLowest ? 0.0f : power;
}

[[gnu::always_inline]] inline float largest_of(const float* x, std::int64_t count) {
  ScoreLanes lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  std::int64_t c = 0;
  for (; c + kScoreLanes <= count; c += kScoreLanes) {
    for (std::int64_t l = 0; l < kScoreLanes; ++l) {
      const auto lane = static_cast<std::size_t>(l);
      lanes[lane] = x[c + l] > lanes[lane] ? x[c + l] : lanes[lane];
    }
  }
  float largest = lanes[0];
  for (const float value : lanes) largest = value > largest ? value : largest;
  for (; c < count; ++c) largest = x[c] > largest ? x[c] : largest;
  return largest;
}

/// Replaces each x by e^(x - top) and returns the sum of the results.
[[gnu::always_inline]] inline float exp_and_sum(float* x, float top, std::int64_t count) {
  ScoreLanes lanes{};
  std::int64_t c = 0;
  for (; c + kScoreLanes <= count; c += kScoreLanes) {
    for (std::int64_t l = 0; l < kScoreLanes; ++l) {
      x[c + l] = exp_of_score(x[c + l] - top);
      lanes[static_cast<std::size_t>(l)] += x[c + l];
    }
  }
  float sum = 0.0f;
  for (; c < count; ++c) sum += x[c] = exp_of_score(x[c] - top);
  for (const float value : lanes) sum += value;
  return sum;
}

/// A block of one head's queries, paired with a block of the same head's keys.
struct Block {
  std::int64_t first_query, queries, first_key, keys;
};

/// Calls body(block, is_first_of_its_queries) for each block; blocks with the same queries are
/// consecutive.
template <class Body>
void for_each_block(const AttentionExtent& extent, const Body& body) {
  for (std::int64_t i = 0; i < extent.steps; i += kQueriesOfBlock) {
    const std::int64_t queries = std::min(kQueriesOfBlock, extent.steps - i);
    const std::int64_t seen = extent.keys_seen(i + queries - 1);
    for (std::int64_t j = 0; j < seen; j += kKeysOfBlock)
      body(Block{i, queries, j, std::min(kKeysOfBlock, seen - j)}, j == 0);
  }
}

/// Returns the number of keys in this block that are visible to query `row`.
std::int64_t keys_seen_in(const AttentionExtent& extent, const Block& block, std::int64_t row) {
  const std::int64_t seen = extent.keys_seen(block.first_query + row) - block.first_key;
  return std::clamp<std::int64_t>(seen, 0, block.keys);
}

void score_block(const AttentionExtent& extent, const Block& block, const float* queries,
                 const float* keys, float* scores) {
  multiply('N', 'T', block.queries, block.keys, extent.features,
           static_cast<float>(extent.attributes.scale),
           queries + block.first_query * extent.features, extent.features,
           keys + block.first_key * extent.features, extent.features, 0.0f, scores, kKeysOfBlock);
}

// Forward pass.

/// Largest score and sum of exponentials for each query of a block, over the keys processed so far.
struct RunningSoftmax {
  std::array<float, kQueriesOfBlock> top, sum;
};

/// Converts scores to softmax weights that are not yet normalized, and rescales earlier results to
/// the new maximum scores.
void gather_block(const AttentionExtent& extent, const Block& block, float* scores, float* results,
                  RunningSoftmax& running) {
  vectorized([&]() __attribute__((always_inline)) {
    for (std::int64_t row = 0; row < block.queries; ++row) {
      float* const x = scores + row * kKeysOfBlock;
      const std::int64_t seen = keys_seen_in(extent, block, row);
      std::fill(x + seen, x + block.keys, 0.0f);
      if (seen == 0) continue;
      float& top = running.top[static_cast<std::size_t>(row)];
      float& sum = running.sum[static_cast<std::size_t>(row)];
      const float largest = largest_of(x, seen);
      const float new_top = largest > top ? largest : top;
      const float correction = exp_of_score(top - new_top);
      sum = sum * correction + exp_and_sum(x, new_top, seen);
      top = new_top;
      float* const result = results + row * extent.length;
      for (std::int64_t c = 0; c < extent.length; ++c) result[c] *= correction;
    }
  });
}

void finish_queries(const AttentionExtent& extent, const Block& block,
                    const RunningSoftmax& running, float* results, float* log_sums) {
  for (std::int64_t row = 0; row < block.queries; ++row) {
    const float sum = running.sum[static_cast<std::size_t>(row)];
    log_sums[row] = running.top[static_cast<std::size_t>(row)] + std::log(sum);
    float* const result = results + row * extent.length;
    for (std::int64_t c = 0; c < extent.length; ++c) result[c] /= sum;
  }
}

void onednn_attention(const KernelArgs& args) {
  const SingleThreadScope one_thread;
  const SignalsHeld signals_held;
  const AttentionExtent extent(args);
  if (extent.features == 0 || extent.length == 0) {  // oneDNN rejects empty rows
    return reference_kernels().find(OpId::kAttention, DType::kFloat32)(args);
  }
  std::ranges::fill(args.out<float>(0), 0.0f);
  std::ranges::fill(args.out<float>(1), 0.0f);
  std::vector<float> scores(static_cast<std::size_t>(kQueriesOfBlock * kKeysOfBlock));
  RunningSoftmax running;
  for (std::int64_t head = 0; head < extent.heads; ++head) {
    const float* queries = args.in<float>(0).data() + extent.queries_at(head);
    const float* keys = args.in<float>(1).data() + extent.keys_at(head);
    const float* values = args.in<float>(2).data() + extent.values_at(head);
    for_each_block(extent, [&](const Block& block, bool is_first) {
      if (is_first) {
        running.top.fill(-std::numeric_limits<float>::infinity());
        running.sum.fill(0.0f);
      }
      float* const results =
          args.out<float>(0).data() + extent.results_at(head) + block.first_query * extent.length;
      score_block(extent, block, queries, keys, scores.data());
      gather_block(extent, block, scores.data(), results, running);
      multiply('N', 'N', block.queries, extent.length, block.keys, 1.0f, scores.data(),
               kKeysOfBlock, values + block.first_key * extent.length, extent.length, 1.0f, results,
               extent.length);
      const std::int64_t seen = extent.keys_seen(block.first_query + block.queries - 1);
      if (block.first_key + block.keys < seen) return;
      finish_queries(extent, block, running, results,
                     args.out<float>(1).data() + head * extent.steps + block.first_query);
    });
  }
}

// Backward pass.

/// Returns, for each query, the weighted mean of the gradients of its attention weights: the sum of
/// weight * gradient over the keys, which equals the sum of dy * result.
std::vector<float> means_of_gradients(const float* dy, const float* results, std::int64_t steps,
                                      std::int64_t length) {
  std::vector<float> means;
  for (std::int64_t i = 0; i < steps * length; i += length) {
    double sum = 0.0;
    for (std::int64_t c = i; c < i + length; ++c)
      sum += static_cast<double>(dy[c]) * static_cast<double>(results[c]);
    means.push_back(static_cast<float>(sum));
  }
  return means;
}

/// Converts scores to weights, and gradients with respect to weights into gradients with respect to
/// scores.
void differentiate_block(const AttentionExtent& extent, const Block& block, const float* log_sums,
                         const float* means, float* scores, float* gradients) {
  const auto scale = static_cast<float>(extent.attributes.scale);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::int64_t row = 0; row < block.queries; ++row) {
      float* const x = scores + row * kKeysOfBlock;
      float* const d = gradients + row * kKeysOfBlock;
      const std::int64_t seen = keys_seen_in(extent, block, row);
      const float log_sum = log_sums[block.first_query + row];
      const float mean = means[block.first_query + row];
      for (std::int64_t c = 0; c < seen; ++c) {
        x[c] = exp_of_score(x[c] - log_sum);
        d[c] = x[c] * (d[c] - mean) * scale;
      }
      std::fill(x + seen, x + block.keys, 0.0f);
      std::fill(d + seen, d + block.keys, 0.0f);
    }
  });
}

void onednn_attention_grad(const KernelArgs& args) {
  const SingleThreadScope one_thread;
  const SignalsHeld signals_held;
  const AttentionExtent extent(args);
  if (extent.features == 0 || extent.length == 0) {  // oneDNN rejects empty rows
    return reference_kernels().find(OpId::kAttentionGrad, DType::kFloat32)(args);
  }
  const std::int64_t features = extent.features, length = extent.length;
  for (std::size_t i = 0; i < 3; ++i) std::ranges::fill(args.out<float>(i), 0.0f);
  std::vector<float> scores(static_cast<std::size_t>(kQueriesOfBlock * kKeysOfBlock));
  std::vector<float> gradients(scores.size());
  for (std::int64_t head = 0; head < extent.heads; ++head) {
    const float* queries = args.in<float>(0).data() + extent.queries_at(head);
    const float* keys = args.in<float>(1).data() + extent.keys_at(head);
    const float* values = args.in<float>(2).data() + extent.values_at(head);
    const float* dy = args.in<float>(5).data() + extent.results_at(head);
    const float* log_sums = args.in<float>(4).data() + head * extent.steps;
    const std::vector<float> means = means_of_gradients(
        dy, args.in<float>(3).data() + extent.results_at(head), extent.steps, length);
    for_each_block(extent, [&](const Block& block, bool) {
      const float* const query = queries + block.first_query * features;
      const float* const key = keys + block.first_key * features;
      const float* const dy_of_block = dy + block.first_query * length;
      score_block(extent, block, queries, keys, scores.data());
      multiply('N', 'T', block.queries, block.keys, length, 1.0f, dy_of_block, length,
               values + block.first_key * length, length, 0.0f, gradients.data(), kKeysOfBlock);
      differentiate_block(extent, block, log_sums, means.data(), scores.data(), gradients.data());
      multiply('N', 'N', block.queries, features, block.keys, 1.0f, gradients.data(), kKeysOfBlock,
               key, features, 1.0f,
               args.out<float>(0).data() + extent.queries_at(head) + block.first_query * features,
               features);
      multiply('T', 'N', block.keys, features, block.queries, 1.0f, gradients.data(), kKeysOfBlock,
               query, features, 1.0f,
               args.out<float>(1).data() + extent.keys_at(head) + block.first_key * features,
               features);
      multiply('T', 'N', block.keys, length, block.queries, 1.0f, scores.data(), kKeysOfBlock,
               dy_of_block, length, 1.0f,
               args.out<float>(2).data() + extent.values_at(head) + block.first_key * length,
               length);
    });
  }
}

}  // namespace

void register_onednn_attention_kernels(KernelTable& table) {
  table.set(OpId::kAttention, DType::kFloat32, onednn_attention);
  table.set(OpId::kAttentionGrad, DType::kFloat32, onednn_attention_grad);
}

}  // namespace tutti::internal
