// Cache of attention keys and values; calls that use it compute only new steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer.h"

namespace tutti {

/// Keys and values of the steps that a model has processed. `cache.call(model, tokens)` computes
/// only the steps of `tokens`, which continue the steps of earlier calls. Its results equal those
/// of one call with all steps. Use it for models whose steps interact only in MultiHeadAttention
/// with .use_causal_mask (e.g. in TransformerBlock); recurrent layers, and convolutions and pooling
/// over steps, throw kUnimplemented. The number of values stored per attention layer is batch *
/// steps * key-value heads * (key_dim + value_dim). Not thread-safe. New sequences need a new
/// cache.
class KeyValueCache {
 public:
  /// Returns the result of `model` for the next steps [batch, steps, ...], in inference mode.
  /// Throws kFailedPrecondition if no layer of the model uses the cache, and kInvalidArgument if
  /// the batch size has changed. A call that throws leaves the cache unchanged.
  Tensor call(const Layer& model, const Tensor& steps);
  /// Number of cached steps.
  std::int64_t steps() const { return steps_; }

  /// For layers: appends keys and values, and returns the keys and values of all steps, [batch,
  /// heads, steps, features per head]. Layers must call it in the same order in every call to the
  /// model.
  std::pair<Tensor, Tensor> appended(const Tensor& key, const Tensor& value);

 private:
  std::vector<std::pair<Tensor, Tensor>> entries_;  // one per attention layer, in call order
  std::size_t next_ = 0;
  std::int64_t steps_ = 0;
};

namespace internal {
/// Throws kUnimplemented, naming the layer `who`, if the call has a cache. For layers that do not
/// support caches.
void require_no_cache(const CallContext& context, std::string_view who);
/// Returns the number of steps that precede the steps of this call.
inline std::int64_t steps_before(const CallContext& context) {
  return context.cache ? context.cache->steps() : 0;
}
}  // namespace internal

}  // namespace tutti
