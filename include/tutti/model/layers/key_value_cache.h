// What attention has computed of the steps before, so that further steps cost no more than they
// are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer.h"

namespace tutti {

/// Keys and values of the steps that a model has seen: `cache.call(model, tokens)` computes the
/// steps of `tokens` alone, which stand behind those of earlier calls, and gives them the results
/// that one call with all steps would. For models whose steps meet in MultiHeadAttention with
/// .use_causal_mask and nowhere else (TransformerBlock, for instance); recurrent layers,
/// convolutions and pooling over steps refuse it. Holds 2 * batch * steps * key-value heads *
/// features numbers per attention. Used by one thread; a new one begins new sequences.
class KeyValueCache {
 public:
  /// The result of `model` for these steps [batch, steps, ...], in inference. Throws
  /// kFailedPrecondition where no layer of the model keeps keys and values; kInvalidArgument for
  /// another batch than before. What throws changes nothing.
  Tensor call(const Layer& model, const Tensor& steps);
  /// How many steps earlier calls had.
  std::int64_t steps() const { return steps_; }

  /// For layers, which ask in the same order in each call: the keys and values of all steps,
  /// [batch, heads, steps, length], of which these are the last.
  std::pair<Tensor, Tensor> appended(const Tensor& key, const Tensor& value);

 private:
  std::vector<std::pair<Tensor, Tensor>> entries_;  // of each attention, in the order of the calls
  std::size_t next_ = 0;
  std::int64_t steps_ = 0;
};

namespace internal {
/// Throws kUnimplemented where a call goes on behind earlier steps that layer `who` does not know.
void require_no_cache(const CallContext& context, std::string_view who);
/// Steps in front of those of this call.
inline std::int64_t steps_before(const CallContext& context) {
  return context.cache ? context.cache->steps() : 0;
}
}  // namespace internal

}  // namespace tutti
