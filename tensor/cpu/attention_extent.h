// The sizes of one call of attention, and where its heads lie.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tutti/tensor/kernel_table.h"

namespace tutti::internal {

/// Heads are numbered over the whole batch; each is a matrix that lies in one piece.
struct AttentionExtent {
  explicit AttentionExtent(const KernelArgs& args)
      : heads(args.inputs[0].shape()[0] * args.inputs[0].shape()[1]),
        steps(args.inputs[0].shape()[2]),
        features(args.inputs[0].shape()[3]),
        value_steps(args.inputs[1].shape()[2]),
        length(args.inputs[2].shape()[3]),
        heads_per_key(args.inputs[0].shape()[1] / args.inputs[1].shape()[1]),
        attributes(args.attributes_as<AttentionAttributes>()) {}

  std::int64_t queries_at(std::int64_t head) const { return head * steps * features; }
  std::int64_t keys_at(std::int64_t head) const {
    return head / heads_per_key * value_steps * features;
  }
  std::int64_t values_at(std::int64_t head) const {
    return head / heads_per_key * value_steps * length;
  }
  std::int64_t results_at(std::int64_t head) const { return head * steps * length; }

  /// Query `step` sees so many keys, the first ones.
  std::int64_t keys_seen(std::int64_t step) const {
    if (!attributes.is_causal) return value_steps;
    return std::min(value_steps, attributes.steps_before + step + 1);
  }

  std::int64_t heads, steps, features, value_steps, length;
  std::int64_t heads_per_key;
  AttentionAttributes attributes;
};

}  // namespace tutti::internal
