// Attention: each query takes a mean of values, weighted by how well their keys fit it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

/// Of attention().
struct AttentionOptions {
  /// Factor of the products of queries and keys; default: 1 / sqrt(features of a key).
  std::optional<double> scale = std::nullopt;
  /// Query i sees keys 0 .. steps_before + i alone.
  bool is_causal = false;
  /// Keys in front of that of the first query: what a sequence had before.
  std::int64_t steps_before = 0;
};

/// softmax(scale * query * key^T) * value: query [batch, heads, steps, features], key [batch,
/// shared, value steps, features], value [batch, shared, value steps, length] -> [batch, heads,
/// steps, length]. `shared` divides `heads`: so many query heads that stand next to each other
/// share a key and a value. Without values the result is 0.
///
/// On CPUs and GPUs it is one operation that goes over the keys block by block and keeps nothing
/// but a number per query besides its result, forward and backward: O(steps) memory. Dao et al.,
/// "FlashAttention" (arXiv 2205.14135); Milakov and Gimelshein, "Online normalizer calculation for
/// softmax" (arXiv 1805.02867). Under XLA, and for gradients of gradients, it is made of matmul()
/// and softmax(), and takes O(steps * value steps).
/// tf.keras.ops.dot_product_attention, with the axis of heads in front of the steps.
Tensor attention(const Operand& query, const Operand& key, const Operand& value,
                 AttentionOptions options = {});
/// The gradients of query, key and value, from the result, `sums` [batch, heads, steps] (the
/// logarithms of what softmax divides by) and the gradient of the result.
std::vector<Tensor> attention_grad(const Operand& query, const Operand& key, const Operand& value,
                                   const Operand& result, const Operand& sums, const Operand& dy,
                                   const AttentionAttributes& attributes);

// Attention made of other operations.

namespace internal {

/// bool [steps, value steps]: whether query i sees key j, as AttentionOptions say.
Tensor causal_mask(std::int64_t steps, std::int64_t value_steps, std::int64_t steps_before,
                   Device device);
/// The shares of the values [batch, heads, steps, value steps]; 0 where `seen`, which broadcasts to
/// them, is false. Undefined: everything is seen.
Tensor attention_shares(const Tensor& query, const Tensor& key, double scale, const Tensor& seen);
/// The values, mixed by their shares.
Tensor mixed_values(const Tensor& shares, const Tensor& value);
/// The gradients of query, key and value, from the shares and the gradient of the result.
std::vector<Tensor> attention_grad_of_shares(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const Tensor& shares,
                                             const Tensor& dy, double scale);

}  // namespace internal
}  // namespace tutti
