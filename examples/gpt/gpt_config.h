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
  std::int64_t context = 128;  // tokens in a training row; GPT-2 cannot process more
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 0;  // number of key and value heads; 0: same as `heads`
  std::int64_t features = 128;
  // Size of feed-forward layers. 0: 4 * features (gpt2), or features * 8 / 3 rounded up to a
  // multiple of 32 (llama).
  std::int64_t hidden = 0;
  bool tied = true;  // true if the output layer shares the embedding's weights
  double epsilon = 1e-5;
  double rotary_max_wavelength = 10000.0;
  double dropout = 0.0;

  bool is_llama() const { return layout == "llama"; }
  std::int64_t head_features() const { return features / heads; }
  std::int64_t hidden_features() const;

  /// Adds the flags --layout, --layers, ...: all sizes except the vocabulary.
  void add_to(Flags& flags);
  /// Throws kInvalidArgument if sizes are inconsistent.
  void check() const;
};

/// Returns config.json as `transformers` writes it for GPT2LMHeadModel and LlamaForCausalLM.
Json config_json(const GptConfig& config);
/// Parses config.json. Throws kUnimplemented, naming the model type or setting, if it is not
/// supported, and kInvalidArgument if a member is missing.
GptConfig config_of_json(const Json& json);

}  // namespace tutti::examples
