// Sequences that a model goes on with: drawn from its logits, step by step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/core/random.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {

/// How sample() draws. What they leave is drawn with its probabilities among one another.
struct SamplingOptions {
  /// Logits are divided by it: below 1 what is likely becomes likelier. 0: the likeliest, always.
  double temperature = 1.0;
  /// So many of the likeliest classes are left; default: all.
  std::optional<std::int64_t> top_k = std::nullopt;
  /// Of these, the likeliest until their probabilities add up to it (nucleus sampling: Holtzman et
  /// al., arXiv 1904.09751). In (0, 1].
  double top_p = 1.0;
};

/// int64 [batch]: a class for each row of logits [batch, classes]. Row i is drawn by number i of
/// the stream of `key` (Philox), so that the same key and logits give the same classes. Of equal
/// logits the lower class counts as the likelier. Throws kInvalidArgument for options out of range,
/// naming a row whose logits are NaN.
Tensor sample(const Tensor& logits, const RandomKey& key, const SamplingOptions& options = {});
/// Same as sample(logits, next_random_key(), options).
inline Tensor sample(const Tensor& logits, NoRandomKey, const SamplingOptions& options = {}) {
  return sample(logits, next_random_key(), options);
}

struct GenerateOptions {
  /// New tokens behind the prompt.
  std::int64_t max_new_tokens = 100;
  /// How each is drawn.
  SamplingOptions sampling = {};
  /// Of the draws; default: set_random_seed()'s. Each place of each row has a draw of its own.
  std::optional<std::uint64_t> seed = std::nullopt;
  /// A row that has drawn it is filled up with it; when all have, the result ends.
  std::optional<std::int64_t> end_token = std::nullopt;
  /// The model sees so many last tokens at most; default: all. When a cache has got so many, it
  /// begins anew with the last half of them.
  std::optional<std::int64_t> window = std::nullopt;
  /// Whether keys and values of the tokens before are kept (KeyValueCache); otherwise the model
  /// computes them again for each token.
  bool use_cache = true;
};

/// The prompt int64 or int32 [batch, steps], and what `model` goes on with: int64 [batch, steps +
/// new], in the host's memory. The model takes tokens [batch, steps] to logits [batch, steps,
/// vocabulary], whose last step is drawn from. Outside replicas, one thread; weights are read as
/// the strategy's scope outside of run() does. Throws kInvalidArgument for an empty prompt, and
/// KeyValueCache's errors.
Tensor generate(const Layer& model, const Tensor& prompt, const GenerateOptions& options = {});

}  // namespace tutti
