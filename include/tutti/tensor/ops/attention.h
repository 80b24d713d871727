// Attention: for each query, the mean of the values, weighted by how well their keys match the
// query.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

/// Options for attention().
struct AttentionOptions {
  /// Factor for the products of queries and keys; default: 1 / sqrt(number of features of a key).
  std::optional<double> scale = std::nullopt;
  /// If true, query i attends only to keys 0 .. steps_before + i.
  bool is_causal = false;
  /// Number of keys that precede the key of the first query, e.g. cached keys from earlier steps.
  std::int64_t steps_before = 0;
};

/// Returns softmax(scale * query * key^T) * value: query [batch, heads, steps, features], key
/// [batch, shared, value steps, features], value [batch, shared, value steps, length] -> [batch,
/// heads, steps, length]. `shared`, the number of key and value heads, must divide `heads`: groups
/// of consecutive query heads share a key and a value. If there are no value steps, the result is
/// 0.
///
/// On CPUs and GPUs, this is one operation that processes the keys block by block. Besides its
/// result, it stores one number per query, so the forward and backward passes use O(steps)
/// additional memory. Dao et al., "FlashAttention" (arXiv 2205.14135); Milakov and Gimelshein,
/// "Online normalizer calculation for softmax" (arXiv 1805.02867). Under XLA, and for gradients of
/// gradients, it is composed of matmul() and softmax(), and uses O(steps * value steps) memory.
/// Same as tf.keras.ops.dot_product_attention, but with the heads axis before the steps axis.
Tensor attention(const Operand& query, const Operand& key, const Operand& value,
                 AttentionOptions options = {});
/// Returns the gradients with respect to query, key and value. `sums` [batch, heads, steps] are the
/// logarithms of the softmax denominators, and `dy` is the gradient with respect to the result.
std::vector<Tensor> attention_grad(const Operand& query, const Operand& key, const Operand& value,
                                   const Operand& result, const Operand& sums, const Operand& dy,
                                   const AttentionAttributes& attributes);

// Attention composed of other operations.

namespace internal {

/// Returns a bool mask [steps, value steps]: true where query i attends to key j in causal
/// attention.
Tensor causal_mask(std::int64_t steps, std::int64_t value_steps, std::int64_t steps_before,
                   Device device);
/// Returns the attention weights [batch, heads, steps, value steps]. They are 0 where `seen`, which
/// is broadcast to their shape, is false. If `seen` is undefined, each query attends to all keys.
Tensor attention_shares(const Tensor& query, const Tensor& key, double scale, const Tensor& seen);
/// Returns the sums of values weighted by `shares`, the attention weights.
Tensor mixed_values(const Tensor& shares, const Tensor& value);
/// Returns the gradients with respect to query, key and value, given the attention weights `shares`
/// and the gradient `dy` of the result.
std::vector<Tensor> attention_grad_of_shares(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const Tensor& shares,
                                             const Tensor& dy, double scale);

}  // namespace internal
}  // namespace tutti
