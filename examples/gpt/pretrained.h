// GPTs as Hugging Face's folders: config.json, model.safetensors, tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "examples/gpt/gpt_model.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/data/tokenizer.h"

namespace tutti::examples {

/// Where a variable lies in model.safetensors.
struct PretrainedPlace {
  std::string variable;
  std::string tensor;
  bool is_transposed = false;            // outputs first
  std::int64_t part = 0, num_parts = 1;  // of the last axis
};

/// Of all variables, parts of a tensor behind each other in their order.
std::vector<PretrainedPlace> pretrained_places(const GptConfig& config);

GptConfig read_config(const std::string& folder);
/// tokenizer.json, or GPT-2's vocab.json and merges.txt.
BytePairTokenizer read_tokenizer_of(const std::string& folder);

/// Takes the weights of model.safetensors, or of the files that model.safetensors.index.json names,
/// of any floating type. Throws kNotFound and kInvalidArgument naming the tensor. All workers call
/// it.
void load_pretrained(Gpt& model, const std::string& folder);

/// The inverse: what model.safetensors holds. All workers call it.
SafetensorsFile pretrained_file(const Gpt& model);
/// Writes it, config.json and tokenizer.json, so that `transformers` loads the folder. One process
/// calls it.
void save_pretrained(const GptConfig& config, const SafetensorsFile& weights,
                     std::string_view tokenizer_json, const std::string& folder);

/// The bytes of a file. Throws kNotFound.
std::string text_of(const std::string& path);

}  // namespace tutti::examples
