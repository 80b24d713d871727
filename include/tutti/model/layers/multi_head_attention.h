// Multi-head attention, and rotary position embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct RotaryEmbeddingOptions {
  /// Features i and i + features / 2 rotate by max_wavelength^(-2 i / features) per step.
  double max_wavelength = 10000.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Rotary position embedding: [batch, steps, ..., features] -> the same, for an even number of
/// features. Features i and i + features / 2 of step t (0, 1, ...) are a point of a plane, which is
/// rotated by the angle t * max_wavelength^(-2 i / features). The product of a rotated query and
/// key depends only on the distance between their steps. Pairs are those of Llama's weights as
/// Hugging Face stores them and of Keras Hub's RotaryEmbedding. For attention of your own;
/// MultiHeadAttention rotates its queries and keys itself (`.rotary_max_wavelength`).
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
/// Rotates the features of x [..., features] by their steps along `step_axis`, which begin with
/// `first_step`. Computes in float32 or wider.
Tensor rotated_by_step(const Tensor& x, int step_axis, double max_wavelength,
                       std::int64_t first_step = 0);
/// Throws kInvalidArgument unless the number of features is even and the wavelength positive.
void require_rotation(std::int64_t features, double max_wavelength, std::string_view who);
}  // namespace internal

struct MultiHeadAttentionOptions {
  /// Number of key and value heads, a divisor of num_heads. Each serves a group of consecutive
  /// query heads (grouped-query attention; 1: multi-query attention). Default: num_heads.
  std::optional<std::int64_t> num_key_value_heads = std::nullopt;
  /// Rotates queries and keys as RotaryEmbedding with this max_wavelength does (10000 is usual).
  /// key_dim must be even. Default: results do not depend on positions.
  std::optional<double> rotary_max_wavelength = std::nullopt;
  /// Length of a head's values; default: key_dim.
  std::optional<std::int64_t> value_dim = std::nullopt;
  /// Features of a result; default: those of the query.
  std::optional<std::int64_t> output_dim = std::nullopt;
  /// Dropout rate of the attention weights, in training.
  double dropout = 0.0;
  bool use_bias = true;
  /// Each step attends only to itself and earlier steps.
  bool use_causal_mask = false;
  /// The last input is a mask [batch, query steps, value steps]: 0 for values to ignore.
  bool with_mask = false;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  /// Apply to all four kernels and biases.
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
};

/// `attention({query, value})`, `({query, value, key})` or, for self-attention, `(x)`; each [batch,
/// steps, features] -> [batch, query steps, features]. Weights query/kernel [features, heads,
/// key_dim], query/bias [heads, key_dim], likewise key and value, with num_key_value_heads;
/// attention_output/kernel [heads, value_dim, features], attention_output/bias [features]. Masked
/// steps (MaskScope) are ignored. A query that may attend to nothing gets attention_output/bias.
/// With no mask but the causal one, and without dropout, it is attention() of
/// tutti/tensor/ops/attention.h: O(steps) memory, except under XLA. A KeyValueCache adds the
/// earlier steps; it requires self-attention with .use_causal_mask, in inference.
class MultiHeadAttention : public LayerOf<MultiHeadAttention, MultiLayer> {
 public:
  MultiHeadAttention(std::int64_t num_heads, std::int64_t key_dim,
                     MultiHeadAttentionOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  /// Adds a kernel and, with .use_bias, a bias of these shapes.
  void add_projection(const std::string& name, const Shape& kernel, const Shape& bias);
  Tensor project(const Tensor& x, std::size_t number) const;
  std::int64_t num_key_value_heads() const {
    return options_.num_key_value_heads.value_or(num_heads_);
  }
  /// Rotates `heads` by their steps if the options request it.
  Tensor positioned(const Tensor& heads, std::int64_t first_step) const;
  /// Returns true where masks other than the causal one let a query attend to a value; broadcasts
  /// to [batch, heads, query steps, value steps]. Undefined: everywhere.
  Tensor seen_by(std::span<const Tensor> inputs) const;
  /// Returns the weighted values of each query: [batch, heads, query steps, length].
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& seen,
                CallContext context) const;
  /// Throws kUnimplemented if a call with these inputs cannot use a cache.
  void require_cacheable(std::span<const Tensor> inputs, CallContext context) const;

  std::int64_t num_heads_;
  std::int64_t key_dim_;
  MultiHeadAttentionOptions options_;
};

}  // namespace tutti
