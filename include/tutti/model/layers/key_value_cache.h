// Cache of attention's keys and values, so that a call computes only its new steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer.h"

namespace tutti {

/// Keys and values of the steps that a model has processed. `cache.call(model, tokens)` computes
/// only the steps of `tokens`, which follow those of earlier calls, with the results that one call
/// with all steps would give. For models whose steps interact only in MultiHeadAttention with
/// .use_causal_mask (TransformerBlock, for instance); recurrent layers, convolutions and pooling
/// over steps throw kUnimplemented. Stores 2 * batch * steps * key-value heads * features numbers
/// per attention. Not thread-safe. New sequences need a new cache.
class KeyValueCache {
 public:
  /// Returns the result of `model` for these steps [batch, steps, ...], in inference. Throws
  /// kFailedPrecondition if no layer of the model uses the cache, kInvalidArgument if the batch
  /// size has changed. A call that throws changes nothing.
  Tensor call(const Layer& model, const Tensor& steps);
  /// Number of steps of earlier calls.
  std::int64_t steps() const { return steps_; }

  /// For layers: appends keys and values and returns those of all steps, [batch, heads, steps,
  /// length]. Layers must call it in the same order in each call of the model.
  std::pair<Tensor, Tensor> appended(const Tensor& key, const Tensor& value);

 private:
  std::vector<std::pair<Tensor, Tensor>> entries_;  // by attention, in the order of their calls
  std::size_t next_ = 0;
  std::int64_t steps_ = 0;
};

namespace internal {
/// Throws kUnimplemented if the call has a cache, which layer `who` does not support.
void require_no_cache(const CallContext& context, std::string_view who);
/// Number of steps before those of this call.
inline std::int64_t steps_before(const CallContext& context) {
  return context.cache ? context.cache->steps() : 0;
}
}  // namespace internal

}  // namespace tutti
