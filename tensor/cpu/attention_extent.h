// Sizes of one attention call, offsets of its heads, and the keys that a query attends to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tensor/kernel_table.h"

namespace tutti::internal {

/// Sizes and offsets of one attention call. Heads are numbered across the whole batch; each is a
/// contiguous matrix. GPU kernels use this class, too.
struct AttentionExtent {
  AttentionExtent(const Shape& query, const Shape& key, const Shape& value,
                  const AttentionAttributes& attributes_of_call)
      : heads(query[0] * query[1]),
        steps(query[2]),
        features(query[3]),
        value_steps(key[2]),
        length(value[3]),
        heads_per_key(query[1] / key[1]),
        attributes(attributes_of_call) {}
  explicit AttentionExtent(const KernelArgs& args)
      : AttentionExtent(args.inputs[0].shape(), args.inputs[1].shape(), args.inputs[2].shape(),
                        args.attributes_as<AttentionAttributes>()) {}

  constexpr std::int64_t queries_at(std::int64_t head) const { return head * steps * features; }
  constexpr std::int64_t keys_at(std::int64_t head) const {
    return head / heads_per_key * value_steps * features;
  }
  constexpr std::int64_t values_at(std::int64_t head) const {
    return head / heads_per_key * value_steps * length;
  }
  constexpr std::int64_t results_at(std::int64_t head) const { return head * steps * length; }

  /// Returns the number of leading keys that query `step` attends to.
  constexpr std::int64_t keys_seen(std::int64_t step) const {
    if (!attributes.is_causal) return value_steps;
    return std::min(value_steps, attributes.steps_before + step + 1);
  }

  std::int64_t heads, steps, features, value_steps, length;
  std::int64_t heads_per_key;
  AttentionAttributes attributes;
};

}  // namespace tutti::internal
