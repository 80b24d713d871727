// Attention and its gradient, query by query.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/cpu/attention_extent.h"
#include "tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

template <class T>
T dot_of(const T* a, const T* b, std::int64_t count) {
  T sum{0};
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
void add_times(T* to, T factor, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

template <class T>
void attention(const KernelArgs& args) {
  const AttentionExtent extent(args);
  const T scale = static_cast<T>(extent.attributes.scale);
  std::ranges::fill(args.out<T>(0), T{0});
  std::ranges::fill(args.out<T>(1), T{0});
  std::vector<T> scores(static_cast<std::size_t>(extent.value_steps));
  for (std::int64_t head = 0; head < extent.heads; ++head) {
    const T* keys = args.in<T>(1).data() + extent.keys_at(head);
    const T* values = args.in<T>(2).data() + extent.values_at(head);
    for (std::int64_t i = 0; i < extent.steps; ++i) {
      const T* query = args.in<T>(0).data() + extent.queries_at(head) + i * extent.features;
      T* result = args.out<T>(0).data() + extent.results_at(head) + i * extent.length;
      const std::span<T> seen =
          std::span(scores).first(static_cast<std::size_t>(extent.keys_seen(i)));
      if (seen.empty()) continue;
      for (std::size_t j = 0; j < seen.size(); ++j) {
        const T* key = keys + static_cast<std::int64_t>(j) * extent.features;
        seen[j] = scale * dot_of(query, key, extent.features);
      }
      const T top = *std::ranges::max_element(seen);
      T sum{0};
      for (const T score : seen) sum += std::exp(score - top);
      const T log_sum = top + std::log(sum);
      for (std::size_t j = 0; j < seen.size(); ++j) {
        add_times(result, std::exp(seen[j] - log_sum),
                  values + static_cast<std::int64_t>(j) * extent.length, extent.length);
      }
      args.out<T>(1)[static_cast<std::size_t>(head * extent.steps + i)] = log_sum;
    }
  }
}

template <class T>
void attention_grad(const KernelArgs& args) {
  const AttentionExtent extent(args);
  const T scale = static_cast<T>(extent.attributes.scale);
  for (std::size_t i = 0; i < 3; ++i) std::ranges::fill(args.out<T>(i), T{0});
  for (std::int64_t head = 0; head < extent.heads; ++head) {
    const T* keys = args.in<T>(1).data() + extent.keys_at(head);
    const T* values = args.in<T>(2).data() + extent.values_at(head);
    T* d_keys = args.out<T>(1).data() + extent.keys_at(head);
    T* d_values = args.out<T>(2).data() + extent.values_at(head);
    for (std::int64_t i = 0; i < extent.steps; ++i) {
      const std::int64_t at_query = extent.queries_at(head) + i * extent.features;
      const std::int64_t at_result = extent.results_at(head) + i * extent.length;
      const T* query = args.in<T>(0).data() + at_query;
      const T* dy = args.in<T>(5).data() + at_result;
      T* d_query = args.out<T>(0).data() + at_query;
      const T log_sum = args.in<T>(4)[static_cast<std::size_t>(head * extent.steps + i)];
      // The sum, over all attention weights, of weight * gradient.
      const T mean = dot_of(dy, args.in<T>(3).data() + at_result, extent.length);
      for (std::int64_t j = 0; j < extent.keys_seen(i); ++j) {
        const T* key = keys + j * extent.features;
        const T* value = values + j * extent.length;
        const T share = std::exp(scale * dot_of(query, key, extent.features) - log_sum);
        const T d_score = share * (dot_of(dy, value, extent.length) - mean) * scale;
        add_times(d_values + j * extent.length, share, dy, extent.length);
        add_times(d_query, d_score, key, extent.features);
        add_times(d_keys + j * extent.features, d_score, query, extent.features);
      }
    }
  }
}

template <class T>
void register_attention_for(KernelTable& table) {
  table.set(OpId::kAttention, dtype_of<T>(), attention<T>);
  table.set(OpId::kAttentionGrad, dtype_of<T>(), attention_grad<T>);
}

}  // namespace

void register_attention_reference_kernels(KernelTable& table) {
  register_attention_for<float>(table);
  register_attention_for<double>(table);
}

}  // namespace tutti::internal
