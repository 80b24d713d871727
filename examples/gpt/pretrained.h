// GPTs as Hugging Face folders: config.json, model.safetensors, tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "examples/gpt/gpt_model.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/data/tokenizer.h"

namespace tutti::examples {

/// Location of a variable's values in model.safetensors.
struct PretrainedPlace {
  std::string variable;
  std::string tensor;
  bool is_transposed = false;  // true if the file's tensor is [outputs, inputs]
  // index of this part of the tensor along its last axis, and number of parts
  std::int64_t part = 0, num_parts = 1;
};

/// Returns the locations of all variables. Parts of one tensor are adjacent and in order.
std::vector<PretrainedPlace> pretrained_places(const GptConfig& config);

GptConfig read_config(const std::string& folder);
/// Reads tokenizer.json, or GPT-2's vocab.json and merges.txt.
BytePairTokenizer read_tokenizer_of(const std::string& folder);

/// Loads the weights, of any floating-point type, from model.safetensors or from the files that
/// model.safetensors.index.json lists. Throws kNotFound or kInvalidArgument, naming the tensor.
/// Collective.
void load_pretrained(Gpt& model, const std::string& folder);

/// Returns the content of model.safetensors for this model. Collective.
SafetensorsFile pretrained_file(const Gpt& model);
/// Writes the weights, config.json and tokenizer.json for `transformers`. Only one process may call
/// this function.
void save_pretrained(const GptConfig& config, const SafetensorsFile& weights,
                     std::string_view tokenizer_json, const std::string& folder);

/// Returns the bytes of a file. Throws kNotFound.
std::string text_of(const std::string& path);

}  // namespace tutti::examples
