// GPT-2 and Llama as models built from tutti's layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "examples/gpt/gpt_config.h"
#include "tutti/tutti.h"

namespace tutti::examples {

/// GPT-2 block: computes y = x + attention(norm(x)) and returns y + feed_forward(norm(y)).
class Gpt2Block : public Layer {
 public:
  Gpt2Block(const GptConfig& config, std::string name);

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  LayerNormalization first_norm_;
  MultiHeadAttention attention_;
  LayerNormalization second_norm_;
  Dense up_, down_;
  Dropout dropout_;
};

/// Model that maps tokens int64 [batch, steps] to logits [batch, steps, vocabulary] for the next
/// token at each step.
class Gpt : public Model {
 public:
  explicit Gpt(const GptConfig& config);
  const GptConfig& config() const { return config_; }

 protected:
  Tensor call(const Tensor& tokens, CallContext context) const override;

 private:
  GptConfig config_;
  Embedding embedding_;
  std::optional<PositionEmbedding> positions_;
  Dropout dropout_;
  std::vector<std::shared_ptr<Layer>> blocks_;
  std::shared_ptr<Layer> norm_;
  std::optional<Dense> output_;  // empty if the embedding's weights are used instead
};

}  // namespace tutti::examples
