// Cache of attention keys and values; calls that use it compute only new steps.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/key_value_cache.h"

#include "core/names.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

Tensor KeyValueCache::call(const Layer& model, const Tensor& steps) {
  internal::require(steps.rank() >= 2, "KeyValueCache: expected [batch, steps, ...], got ",
                    steps.shape());
  const auto before = entries_;
  next_ = 0;
  try {
    const Tensor result = model(steps, {.cache = this});
    if (next_ == 0) {
      fail(ErrorCode::kFailedPrecondition, "KeyValueCache: layer '", model.name(), "' (",
           model.type_name(),
           "): expected a layer that contains a MultiHeadAttention, found none; call the layer "
           "without a cache");
    }
    steps_ += steps.shape()[1];
    return result;
  } catch (...) {
    entries_ = before;
    throw;
  }
}

std::pair<Tensor, Tensor> KeyValueCache::appended(const Tensor& key, const Tensor& value) {
  const std::size_t number = next_++;
  if (number == entries_.size() && steps_ == 0) {
    entries_.emplace_back(key, value);
  } else {
    TUTTI_CHECK(number < entries_.size(),
                "KeyValueCache: expected as many attention layers as in the first call, got more");
    auto& [keys, values] = entries_[number];
    internal::require(keys.shape()[0] == key.shape()[0], "KeyValueCache: expected a batch of ",
                      keys.shape()[0], " as in the first call, got ", key.shape()[0],
                      "; use a new cache");
    keys = concat({keys, key}, 2);
    values = concat({values, value}, 2);
  }
  return entries_[number];
}

void internal::require_no_cache(const CallContext& context, std::string_view who) {
  if (!context.cache) return;
  fail(ErrorCode::kUnimplemented, who,
       ": the layer's result depends on earlier steps, which a KeyValueCache does not store; call "
       "generate() with .use_cache = false");
}

}  // namespace tutti
