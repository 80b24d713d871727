// Multi-head attention, and rotary position embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct RotaryEmbeddingOptions {
  /// Features i and i + features / 2 are rotated by an angle of max_wavelength^(-2 i / features)
  /// radians per step.
  double max_wavelength = 10000.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Rotary position embedding: [batch, steps, ..., features] -> the same shape, for an even number
/// of features. Features i and i + features / 2 of step t (0, 1, ...) are the coordinates of a
/// point, which is rotated by the angle t * max_wavelength^(-2 i / features). So the product of a
/// rotated query and a rotated key depends on the distance between their steps, and not on the
/// steps themselves. Features are paired as in Llama's weights from Hugging Face and in Keras Hub's
/// RotaryEmbedding. Use it for custom attention; MultiHeadAttention rotates its queries and keys
/// itself (`.rotary_max_wavelength`).
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
/// Rotates the features of x [..., features] by angles that depend on the step along `step_axis`;
/// steps are numbered from `first_step`. Computes in float32 or wider.
Tensor rotated_by_step(const Tensor& x, int step_axis, double max_wavelength,
                       std::int64_t first_step = 0);
/// Throws kInvalidArgument unless the number of features is even and the wavelength is positive.
void require_rotation(std::int64_t features, double max_wavelength, std::string_view who);
}  // namespace internal

struct MultiHeadAttentionOptions {
  /// Number of key and value heads, a divisor of num_heads. A group of consecutive query heads
  /// shares one key head and one value head (grouped-query attention; 1: multi-query attention).
  /// Default: num_heads.
  std::optional<std::int64_t> num_key_value_heads = std::nullopt;
  /// max_wavelength of the rotary embedding of queries and keys; usually 10000. key_dim must be
  /// even. Default: no rotation.
  std::optional<double> rotary_max_wavelength = std::nullopt;
  /// Number of features of a head's values; default: key_dim.
  std::optional<std::int64_t> value_dim = std::nullopt;
  /// Number of output features; default: that of the query.
  std::optional<std::int64_t> output_dim = std::nullopt;
  /// Dropout rate of the attention weights, in training.
  double dropout = 0.0;
  bool use_bias = true;
  /// If true, each step attends only to itself and earlier steps.
  bool use_causal_mask = false;
  /// If true, the last input is a mask [batch, query steps, value steps], which is 0 for values to
  /// ignore.
  bool with_mask = false;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  /// Regularizers and constraints for all four kernels and their biases.
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
};

/// Multi-head attention. Call `attention({query, value})`, `attention({query, value, key})` or, for
/// self-attention, `attention(x)`; each input [batch, steps, features] -> [batch, query steps,
/// features]. Weights: query/kernel [features, heads, key_dim] and query/bias [heads, key_dim]; key
/// and value likewise, with num_key_value_heads; attention_output/kernel [heads, value_dim,
/// features] and attention_output/bias [features]. Masked steps (MaskScope) are ignored. The result
/// for a query that may attend to nothing is attention_output/bias. With no mask except the causal
/// mask, and without dropout, the layer calls attention() of tutti/tensor/ops/attention.h, which
/// uses O(steps) memory, except under XLA. A KeyValueCache adds the earlier steps; it requires
/// self-attention with .use_causal_mask, in inference.
class MultiHeadAttention : public LayerOf<MultiHeadAttention, MultiLayer> {
 public:
  MultiHeadAttention(std::int64_t num_heads, std::int64_t key_dim,
                     MultiHeadAttentionOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  /// Adds a kernel and, if use_bias is set, a bias, of the given shapes.
  void add_projection(const std::string& name, const Shape& kernel, const Shape& bias);
  Tensor project(const Tensor& x, std::size_t number) const;
  std::int64_t num_key_value_heads() const {
    return options_.num_key_value_heads.value_or(num_heads_);
  }
  /// Applies the rotary position embedding, if the options request it, to `heads`, whose first step
  /// is `first_step`.
  Tensor positioned(const Tensor& heads, std::int64_t first_step) const;
  /// Returns a bool tensor that is true where masks other than the causal mask allow a query to
  /// attend to a value. The tensor broadcasts to [batch, heads, query steps, value steps]; it is
  /// undefined if these masks exclude nothing.
  Tensor seen_by(std::span<const Tensor> inputs) const;
  /// Returns the weighted sums of values for each query: [batch, heads, query steps, value_dim].
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& seen,
                CallContext context) const;
  /// Throws kUnimplemented if a call with these inputs cannot use a cache.
  void require_cacheable(std::span<const Tensor> inputs, CallContext context) const;

  std::int64_t num_heads_;
  std::int64_t key_dim_;
  MultiHeadAttentionOptions options_;
};

}  // namespace tutti
