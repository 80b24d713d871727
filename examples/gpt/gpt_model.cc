// Implements GPT-2 and Llama with tutti's layers.
// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt/gpt_model.h"

#include <cmath>

namespace tutti::examples {
namespace {

/// Returns GPT-2's initializer, which is also used for Llama.
Initializer kernel_initializer() { return initializers::random_normal(0.0, 0.02); }

/// Returns an initializer with smaller weights for the last layer of each GPT-2 block. The scale
/// accounts for the 2 * config.layers additions to the residual stream.
Initializer residual_initializer(const GptConfig& config) {
  return initializers::random_normal(0.0,
                                     0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

std::shared_ptr<Layer> block_of(const GptConfig& config, std::int64_t number) {
  const std::string name = concat("block_", number);
  if (!config.is_llama()) return std::make_shared<Gpt2Block>(config, name);
  const std::int64_t shared = config.key_value_heads > 0 ? config.key_value_heads : config.heads;
  return std::make_shared<TransformerBlock>(
      config.heads, config.head_features(), config.hidden_features(),
      TransformerBlockOptions{.num_key_value_heads = shared,
                              .rotary_max_wavelength = config.rotary_max_wavelength,
                              .dropout = config.dropout,
                              .epsilon = config.epsilon,
                              .kernel_initializer = kernel_initializer(),
                              .name = name});
}

std::shared_ptr<Layer> last_norm(const GptConfig& config) {
  if (config.is_llama()) {
    return std::make_shared<RMSNormalization>(
        RMSNormalizationOptions{.epsilon = config.epsilon, .name = "norm"});
  }
  return std::make_shared<LayerNormalization>(
      LayerNormalizationOptions{.epsilon = config.epsilon, .name = "norm"});
}

}  // namespace

Gpt2Block::Gpt2Block(const GptConfig& config, std::string name)
    : Layer(std::move(name)),
      first_norm_({.epsilon = config.epsilon, .name = "attention_norm"}),
      attention_(config.heads, config.head_features(),
                 {.use_causal_mask = true,
                  .kernel_initializer = kernel_initializer(),
                  .name = "attention"}),
      second_norm_({.epsilon = config.epsilon, .name = "feed_forward_norm"}),
      up_(config.hidden_features(),
          {.activation = "gelu_tanh", .kernel_initializer = kernel_initializer(), .name = "up"}),
      down_(config.features, {.kernel_initializer = residual_initializer(config), .name = "down"}),
      dropout_(config.dropout) {}

Shape Gpt2Block::build(const Shape& input) {
  add_layer(first_norm_, input);
  add_layer(attention_, input);
  add_layer(second_norm_, input);
  add_layer(dropout_, input);
  return add_layer(down_, add_layer(up_, input));
}

Tensor Gpt2Block::call(const Tensor& input, CallContext context) const {
  const Tensor y = input + dropout_(attention_(first_norm_(input), context), context);
  return y + dropout_(down_(up_(second_norm_(y))), context);
}

Gpt::Gpt(const GptConfig& config)
    : Model(),
      config_(config),
      embedding_(config.vocabulary, config.features,
                 {.embeddings_initializer = kernel_initializer(), .name = "embedding"}),
      dropout_(config.dropout) {
  config.check();
  const Shape tokens{config.context};
  const Shape steps = add_layer(embedding_, tokens);
  if (!config.is_llama()) {
    positions_.emplace(
        config.context,
        PositionEmbeddingOptions{.embeddings_initializer = initializers::random_normal(0.0, 0.01),
                                 .name = "position_embedding"});
    add_layer(*positions_, steps);
  }
  add_layer(dropout_, steps);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(block_of(config, i));
    add_layer(*blocks_.back(), steps);
  }
  norm_ = last_norm(config);
  add_layer(*norm_, steps);
  if (!config.tied) {
    output_.emplace(config.vocabulary, DenseOptions{.use_bias = false,
                                                    .kernel_initializer = kernel_initializer(),
                                                    .name = "output"});
    add_layer(*output_, steps);
  }
  set_built(tokens, Shape{config.context, config.vocabulary});
}

Tensor Gpt::call(const Tensor& tokens, CallContext context) const {
  Tensor x = embedding_(tokens, context);
  if (positions_) x = (*positions_)(x, context);
  x = dropout_(x, context);
  for (const auto& block : blocks_) x = (*block)(x, context);
  x = (*norm_)(x, context);
  return output_ ? (*output_)(x, context) : embedding_.logits(x);
}

}  // namespace tutti::examples
