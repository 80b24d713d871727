// SwiGLU (a gated feed-forward layer) and a transformer block.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/transformer.h"

#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {

// The gated feed-forward layer.

SwiGLU::SwiGLU(std::int64_t hidden_dim, SwiGLUOptions options)
    : LayerOf(options.name, options.input_shape),
      hidden_dim_(hidden_dim),
      options_(std::move(options)) {
  internal::require_positive(hidden_dim, "SwiGLU", "hidden_dim");
  internal::require_positive(options_.output_dim.value_or(1), "SwiGLU", "output_dim");
  made_with(hidden_dim, options_);
}

void SwiGLU::add_product(const std::string& name, std::int64_t from, std::int64_t to) {
  add_weight(options_.kernel_initializer, {from, to}, {.name = name + "/kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, {to}, name + "/bias");
}

Shape SwiGLU::build(const Shape& input) {
  internal::require_features(input);
  const std::int64_t features = input[-1], output = options_.output_dim.value_or(features);
  add_product("gate", features, hidden_dim_);
  add_product("up", features, hidden_dim_);
  add_product("down", hidden_dim_, output);
  return input.with_dim(-1, output);
}

Tensor SwiGLU::product(const Tensor& x, std::size_t number) const {
  const std::size_t first = number * (options_.use_bias ? 2 : 1);
  const Tensor bias = options_.use_bias ? weight(first + 1).value() : Tensor();
  return internal::dense_product(x, weight(first).value(), bias);
}

Tensor SwiGLU::call(const Tensor& input, CallContext) const {
  internal::require_features(input, weight(0).shape()[0]);
  return product(silu(product(input, 0)) * product(input, 1), 2);
}

// A block of a transformer.

TransformerBlock::TransformerBlock(std::int64_t num_heads, std::int64_t key_dim,
                                   std::int64_t hidden_dim, TransformerBlockOptions options)
    : LayerOf(options.name, options.input_shape),
      options_(std::move(options)),
      attention_norm_({.epsilon = options_.epsilon, .name = "attention_norm"}),
      attention_(num_heads, key_dim,
                 {.num_key_value_heads = options_.num_key_value_heads,
                  .rotary_max_wavelength = options_.rotary_max_wavelength,
                  .dropout = options_.dropout,
                  .use_bias = options_.use_bias,
                  .use_causal_mask = options_.use_causal_mask,
                  .kernel_initializer = options_.kernel_initializer,
                  .name = "attention"}),
      feed_forward_norm_({.epsilon = options_.epsilon, .name = "feed_forward_norm"}),
      feed_forward_(hidden_dim, {.use_bias = options_.use_bias,
                                 .kernel_initializer = options_.kernel_initializer,
                                 .name = "feed_forward"}) {
  made_with(num_heads, key_dim, hidden_dim, options_);
}

Shape TransformerBlock::build(const Shape& input) {
  internal::require_sequence(input, "TransformerBlock");
  add_layer(attention_norm_, input);
  add_layer(attention_, input);
  add_layer(feed_forward_norm_, input);
  return add_layer(feed_forward_, input);
}

Tensor TransformerBlock::dropped(const Tensor& x, CallContext context) const {
  if (!context.training || options_.dropout == 0.0) return x;
  return dropout(x, options_.dropout, next_random_key());
}

Tensor TransformerBlock::call(const Tensor& input, CallContext context) const {
  const Tensor y = input + dropped(attention_(attention_norm_(input), context), context);
  return y + dropped(feed_forward_(feed_forward_norm_(y)), context);
}

}  // namespace tutti
