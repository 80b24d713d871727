// Attention: for each query, a mean of the values weighted by how well their keys match it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

/// Options of attention().
struct AttentionOptions {
  /// Factor applied to the products of queries and keys; default: 1 / sqrt(features of a key).
  std::optional<double> scale = std::nullopt;
  /// If true, query i attends only to keys 0 .. steps_before + i.
  bool is_causal = false;
  /// Number of keys before the key of the first query: the earlier part of the sequence.
  std::int64_t steps_before = 0;
};

/// softmax(scale * query * key^T) * value: query [batch, heads, steps, features], key [batch,
/// shared, value steps, features], value [batch, shared, value steps, length] -> [batch, heads,
/// steps, length]. `shared` must divide `heads`: each group of heads / shared consecutive query
/// heads shares a key and a value. Without values the result is 0.
///
/// On CPUs and GPUs this is one operation that processes the keys block by block. Besides its
/// result it keeps one number per query, forward and backward: O(steps) memory. Dao et al.,
/// "FlashAttention" (arXiv 2205.14135); Milakov and Gimelshein, "Online normalizer calculation for
/// softmax" (arXiv 1805.02867). Under XLA, and for gradients of gradients, it is composed of
/// matmul() and softmax(), and takes O(steps * value steps).
/// tf.keras.ops.dot_product_attention, with the axis of heads before the steps.
Tensor attention(const Operand& query, const Operand& key, const Operand& value,
                 AttentionOptions options = {});
/// Returns the gradients of query, key and value. `sums` [batch, heads, steps] are the logarithms
/// of the softmax denominators, `dy` is the gradient of the result.
std::vector<Tensor> attention_grad(const Operand& query, const Operand& key, const Operand& value,
                                   const Operand& result, const Operand& sums, const Operand& dy,
                                   const AttentionAttributes& attributes);

// Attention composed of other operations.

namespace internal {

/// Returns bool [steps, value steps]: true where query i attends to key j under AttentionOptions.
Tensor causal_mask(std::int64_t steps, std::int64_t value_steps, std::int64_t steps_before,
                   Device device);
/// Returns the attention weights [batch, heads, steps, value steps]; 0 where `seen`, which
/// broadcasts to them, is false. Without `seen` (undefined) each query attends to all keys.
Tensor attention_shares(const Tensor& query, const Tensor& key, double scale, const Tensor& seen);
/// Returns the sums of values weighted by `shares`.
Tensor mixed_values(const Tensor& shares, const Tensor& value);
/// Returns the gradients of query, key and value, from the shares and the gradient of the result.
std::vector<Tensor> attention_grad_of_shares(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const Tensor& shares,
                                             const Tensor& dy, double scale);

}  // namespace internal
}  // namespace tutti
