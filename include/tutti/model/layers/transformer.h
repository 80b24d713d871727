// SwiGLU, the feed-forward layer of current transformers, and a transformer block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/multi_head_attention.h"
#include "tutti/model/layers/normalizations.h"

namespace tutti {

// The gated feed-forward layer.

struct SwiGLUOptions {
  /// Number of features of the result; default: that of the input.
  std::optional<std::int64_t> output_dim = std::nullopt;
  bool use_bias = false;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  /// Regularizers and constraints that apply to all three kernels and to their biases.
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, ..., features] -> [batch, ..., output_dim]: (silu(x gate) * (x up)) down, where * is
/// elementwise. Weights: gate/kernel and up/kernel [features, hidden_dim], down/kernel [hidden_dim,
/// output_dim]; with .use_bias, a bias follows each kernel. Shazeer, "GLU Variants Improve
/// Transformer" (2020).
class SwiGLU : public LayerOf<SwiGLU> {
 public:
  explicit SwiGLU(std::int64_t hidden_dim, SwiGLUOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  void add_product(const std::string& name, std::int64_t from, std::int64_t to);
  /// Returns x [rows, features] times kernel `number`, plus its bias.
  Tensor product(const Tensor& x, std::size_t number) const;

  std::int64_t hidden_dim_;
  SwiGLUOptions options_;
};

// A block of a transformer.

struct TransformerBlockOptions {
  /// Number of key and value heads; default: num_heads.
  std::optional<std::int64_t> num_key_value_heads = std::nullopt;
  /// max_wavelength of the rotary position embedding; nullopt: no position embedding.
  std::optional<double> rotary_max_wavelength = 10000.0;
  /// If true, each step attends only to itself and earlier steps.
  bool use_causal_mask = true;
  /// Dropout rate of attention weights and residual branches, in training.
  double dropout = 0.0;
  double epsilon = 1e-6;
  bool use_bias = false;
  Initializer kernel_initializer = "glorot_uniform";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Llama's block, [batch, steps, features] -> the same shape: y + SwiGLU(norm(y)) with y = x +
/// attention(norm(x)), where norm is RMSNormalization. Sub-layers: attention_norm, attention (heads
/// of key_dim), feed_forward_norm, feed_forward (hidden_dim). No step attends to a masked step
/// (MaskScope).
class TransformerBlock : public LayerOf<TransformerBlock> {
 public:
  TransformerBlock(std::int64_t num_heads, std::int64_t key_dim, std::int64_t hidden_dim,
                   TransformerBlockOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  Tensor dropped(const Tensor& x, CallContext context) const;

  TransformerBlockOptions options_;
  RMSNormalization attention_norm_;
  MultiHeadAttention attention_;
  RMSNormalization feed_forward_norm_;
  SwiGLU feed_forward_;
};

}  // namespace tutti
