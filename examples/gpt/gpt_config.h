// Sizes of a GPT, set by flags or by Hugging Face's config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/core/json.h"

namespace tutti::examples {

/// Architecture and sizes. GPT-2 (Radford et al., 2019) has learned positions, layer normalisation
/// and biases; Llama (Touvron et al., arXiv 2302.13971) has rotary embeddings, RMS normalisation
/// and SwiGLU.
struct GptConfig {
  std::string layout = "gpt2";  // or "llama"
  std::int64_t vocabulary = 256;
  std::int64_t context = 128;  // tokens of a training row; maximum for GPT-2
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 0;  // 0: heads
  std::int64_t features = 128;
  std::int64_t hidden = 0;  // of the feed-forward layers; 0: 4 (gpt2) or 8 / 3 (llama) * features
  bool tied = true;         // the output shares the weights of the embedding
  double epsilon = 1e-5;
  double rotary_max_wavelength = 10000.0;
  double dropout = 0.0;

  bool is_llama() const { return layout == "llama"; }
  std::int64_t head_features() const { return features / heads; }
  std::int64_t hidden_features() const;

  /// Adds --layout, --layers, ...: all except the vocabulary.
  void add_to(Flags& flags);
  /// Throws kInvalidArgument for inconsistent sizes.
  void check() const;
};

/// Returns the config.json that `transformers` writes for GPT2LMHeadModel and LlamaForCausalLM.
Json config_json(const GptConfig& config);
/// Parses config.json. Throws kUnimplemented naming a model or setting that neither network
/// supports, kInvalidArgument for a missing member.
GptConfig config_of_json(const Json& json);

}  // namespace tutti::examples
