// Attention of several heads, and positions of steps as rotations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct RotaryEmbeddingOptions {
  /// Features i and i + features / 2 turn by max_wavelength^(-2 i / features) a step.
  double max_wavelength = 10000.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, ..., features] -> the same, of an even number of features: features i and i +
/// features / 2 of step t (0, 1, ...) as the point of a plane, turned by the angle t *
/// max_wavelength^(-2 i / features). The product of a query and a key that are turned so depends on
/// how far apart their steps are, not on where they are. Pairs are those of Llama's weights as
/// Hugging Face stores them and of Keras Hub's RotaryEmbedding. For attention of one's own;
/// MultiHeadAttention turns its queries and keys itself (`.rotary_max_wavelength`).
class RotaryEmbedding : public LayerOf<RotaryEmbedding> {
 public:
  explicit RotaryEmbedding(RotaryEmbeddingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  RotaryEmbeddingOptions options_;
};

namespace internal {
/// x [..., features] with its features turned by the numbers of their steps along `step_axis`, of
/// which `first_step` is the first, in float32 at least.
Tensor turned_by_step(const Tensor& x, int step_axis, double max_wavelength,
                      std::int64_t first_step = 0);
/// Throws kInvalidArgument unless there can be pairs of so many features, and the wavelength is
/// positive.
void require_rotation(std::int64_t features, double max_wavelength, std::string_view who);
}  // namespace internal

struct MultiHeadAttentionOptions {
  /// Of keys and values, a divisor of num_heads: so many groups of query heads that stand next to
  /// each other share a key and a value (grouped-query attention; 1: multi-query attention).
  /// Default: num_heads, each has its own.
  std::optional<std::int64_t> num_key_value_heads = std::nullopt;
  /// Queries and keys are turned by the numbers of their steps, as by RotaryEmbedding with this
  /// max_wavelength (10000 is usual); key_dim is even. Default: positions make no difference.
  std::optional<double> rotary_max_wavelength = std::nullopt;
  /// Length of a head's values; default: key_dim.
  std::optional<std::int64_t> value_dim = std::nullopt;
  /// Features of a result; default: those of the query.
  std::optional<std::int64_t> output_dim = std::nullopt;
  /// For the attention itself, in training.
  double dropout = 0.0;
  bool use_bias = true;
  /// A step attends to itself and earlier ones only.
  bool use_causal_mask = false;
  /// The last input is a mask [batch, query steps, value steps]: 0 where nothing may be seen.
  bool with_mask = false;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  /// For all four kernels and biases.
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
};

/// `attention({query, value})`, `({query, value, key})` or, of itself, `(x)`; each [batch, steps,
/// features] -> [batch, query steps, features]. Weights query/kernel [features, heads, key_dim],
/// query/bias [heads, key_dim], likewise key and value, of num_key_value_heads;
/// attention_output/kernel [heads, value_dim, features], attention_output/bias [features]. Steps
/// that do not count (MaskScope) are not seen. A query that sees nothing gets 0, that is,
/// attention_output/bias. Without masks but the causal one, and without dropout, it is attention()
/// of tutti/tensor/ops/attention.h: O(steps) memory, except under XLA. In a call with a
/// KeyValueCache the steps before are seen, too: attention to itself, with .use_causal_mask, in
/// inference.
class MultiHeadAttention : public LayerOf<MultiHeadAttention, MultiLayer> {
 public:
  MultiHeadAttention(std::int64_t num_heads, std::int64_t key_dim,
                     MultiHeadAttentionOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  /// A kernel and, with .use_bias, a bias of these shapes.
  void add_projection(const std::string& name, const Shape& kernel, const Shape& bias);
  Tensor project(const Tensor& x, std::size_t number) const;
  std::int64_t num_key_value_heads() const {
    return options_.num_key_value_heads.value_or(num_heads_);
  }
  /// Turned by step, where the options say so.
  Tensor positioned(const Tensor& heads, std::int64_t first_step) const;
  /// Whether masks let a value be seen, but for the causal one; broadcasts to [batch, heads, query
  /// steps, value steps]. Undefined: everywhere.
  Tensor seen_by(std::span<const Tensor> inputs) const;
  /// The values, mixed for each query: [batch, heads, query steps, length].
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& seen,
                CallContext context) const;
  /// Throws unless such a call can go on behind the steps of a cache.
  void require_cacheable(std::span<const Tensor> inputs, CallContext context) const;

  std::int64_t num_heads_;
  std::int64_t key_dim_;
  MultiHeadAttentionOptions options_;
};

}  // namespace tutti
