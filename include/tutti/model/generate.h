// Generation of token sequences from a model's logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/core/random.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {

/// Options for sample(). Probabilities of the classes that top_k and top_p keep are renormalised.
struct SamplingOptions {
  /// Divisor for the logits. Values below 1 favour likely classes; 0 always selects the most likely
  /// class.
  double temperature = 1.0;
  /// If set, only the `top_k` most likely classes can be drawn. Default: all classes.
  std::optional<std::int64_t> top_k = std::nullopt;
  /// Keeps only the most likely classes whose total probability reaches this value, in (0, 1]
  /// (nucleus sampling: Holtzman et al., arXiv 1904.09751).
  double top_p = 1.0;
};

/// Draws a class for each row of logits [batch, classes]; returns int64 [batch]. Row i uses number
/// i of the Philox stream of `key`, so the same key and logits give the same classes. Among equal
/// logits, the lower class is treated as more likely. Throws kInvalidArgument if an option is out
/// of range, or if a logit is NaN (naming the row).
Tensor sample(const Tensor& logits, const RandomKey& key, const SamplingOptions& options = {});
/// Same as sample(logits, next_random_key(), options).
inline Tensor sample(const Tensor& logits, NoRandomKey, const SamplingOptions& options = {}) {
  return sample(logits, next_random_key(), options);
}

/// Options for generate().
struct GenerateOptions {
  /// Number of tokens to append to the prompt.
  std::int64_t max_new_tokens = 100;
  /// Options for sampling each token.
  SamplingOptions sampling = {};
  /// Seed for sampling; default: the seed of set_random_seed(). Each token of each row has its own
  /// random number.
  std::optional<std::uint64_t> seed = std::nullopt;
  /// Token that ends a row; the rest of the row is padded with it. Generation ends when all rows
  /// have ended.
  std::optional<std::int64_t> end_token = std::nullopt;
  /// Context length: the model processes only the most recent tokens, at most this many. Default:
  /// unlimited. A cache that has this many tokens is rebuilt from the most recent window / 2
  /// tokens.
  std::optional<std::int64_t> window = std::nullopt;
  /// If true, keeps keys and values of earlier tokens (KeyValueCache); if false, the model
  /// recomputes them for each token.
  bool use_cache = true;
};

/// Returns `prompt`, int64 or int32 [batch, steps], followed by the tokens that `model` generates:
/// int64 [batch, steps + new], in host memory. The model maps tokens [batch, steps] to logits
/// [batch, steps, vocabulary]; the last step's logits determine the next token. Must be called
/// outside replicas; weights are read as in the cross-replica context. Not thread-safe. Throws
/// kInvalidArgument for an empty prompt, and the errors of KeyValueCache.
Tensor generate(const Layer& model, const Tensor& prompt, const GenerateOptions& options = {});

}  // namespace tutti
