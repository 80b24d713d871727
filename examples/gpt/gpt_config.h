// The sizes of a GPT, as flags and as Hugging Face's config.json give them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/core/json.h"

namespace tutti::examples {

/// Which of two networks, and how large. GPT-2 (Radford et al., 2019) has learnt positions, layer
/// normalisation and biases; Llama (Touvron et al., arXiv 2302.13971) turns queries and keys, and
/// has RMS normalisation and SwiGLU.
struct GptConfig {
  std::string layout = "gpt2";  // or "llama"
  std::int64_t vocabulary = 256;
  std::int64_t context = 128;  // steps that are trained at once; GPT-2 knows no more
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 0;  // 0: heads
  std::int64_t features = 128;
  std::int64_t hidden = 0;  // of the feed-forward layers; 0: 4 (gpt2) or 8 / 3 (llama) * features
  bool tied = true;         // the output has the weights of the embedding
  double epsilon = 1e-5;
  double rotary_max_wavelength = 10000.0;
  double dropout = 0.0;

  bool is_llama() const { return layout == "llama"; }
  std::int64_t head_features() const { return features / heads; }
  std::int64_t hidden_features() const;

  /// --layout, --layers, ...: all but the vocabulary.
  void add_to(Flags& flags);
  /// Throws kInvalidArgument for sizes that do not fit each other.
  void check() const;
};

/// What `transformers` writes for GPT2LMHeadModel and LlamaForCausalLM.
Json config_json(const GptConfig& config);
/// The inverse. Throws kUnimplemented naming a model or a setting that neither network has;
/// kInvalidArgument for a member that is missing.
GptConfig config_of_json(const Json& json);

}  // namespace tutti::examples
