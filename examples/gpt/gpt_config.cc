// Implements GptConfig: flags and Hugging Face's config.json.
// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt/gpt_config.h"

#include "tutti/core/error.h"

namespace tutti::examples {

std::int64_t GptConfig::hidden_features() const {
  if (hidden > 0) return hidden;
  return is_llama() ? (features * 8 / 3 + 31) / 32 * 32 : 4 * features;
}

void GptConfig::add_to(Flags& flags) {
  flags.add_choice("--layout", layout, {"gpt2", "llama"}, "architecture of the network");
  flags.add("--context", context, "number of tokens in a sequence");
  flags.add("--layers", layers, "number of blocks");
  flags.add("--heads", heads, "number of attention heads");
  flags.add("--key-value-heads", key_value_heads,
            "llama: key and value heads; 0: as many as --heads");
  flags.add("--features", features, "size of a token's vector in the network");
  flags.add("--dropout", dropout, "fraction of block outputs dropped in training");
}

void GptConfig::check() const {
  if (context < 1 || layers < 1 || heads < 1 || features % heads != 0) {
    fail(ErrorCode::kInvalidArgument,
         "gpt: expected positive sizes, and features divisible by heads, got context ", context,
         ", layers ", layers, ", heads ", heads, ", features ", features);
  }
}

namespace {

const Json* given(const Json& json, const char* name) {
  const Json* const member = json.find(name);
  return member && !member->is_null() ? member : nullptr;
}

std::int64_t number(const Json& json, const char* name, std::int64_t otherwise) {
  const Json* const member = given(json, name);
  return member ? member->as_int() : otherwise;
}

double real(const Json& json, const char* name, double otherwise) {
  const Json* const member = given(json, name);
  return member ? member->as_double() : otherwise;
}

/// Throws kUnimplemented if a setting is present and is not `expected`, the only supported value.
void require(const Json& json, const char* name, const Json& expected) {
  const Json* const member = given(json, name);
  if (!member || *member == expected) return;
  fail(ErrorCode::kUnimplemented, "config.json: ", name, ": expected ", expected.dump(), ", got ",
       member->dump());
}

Json gpt2_json(const GptConfig& config) {
  Json json = Json::object();
  json.set("architectures", Json::Array{"GPT2LMHeadModel"}).set("model_type", "gpt2");
  json.set("vocab_size", config.vocabulary).set("n_positions", config.context);
  json.set("n_layer", config.layers).set("n_head", config.heads).set("n_embd", config.features);
  json.set("n_inner", config.hidden_features()).set("layer_norm_epsilon", config.epsilon);
  json.set("activation_function", "gelu_new").set("tie_word_embeddings", config.tied);
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json.set(dropout, 0.0);
  return json;
}

Json llama_json(const GptConfig& config) {
  Json json = Json::object();
  json.set("architectures", Json::Array{"LlamaForCausalLM"}).set("model_type", "llama");
  json.set("vocab_size", config.vocabulary).set("max_position_embeddings", config.context);
  json.set("num_hidden_layers", config.layers).set("num_attention_heads", config.heads);
  json.set("num_key_value_heads",
           config.key_value_heads > 0 ? config.key_value_heads : config.heads);
  json.set("hidden_size", config.features).set("intermediate_size", config.hidden_features());
  json.set("rms_norm_eps", config.epsilon).set("rope_theta", config.rotary_max_wavelength);
  json.set("hidden_act", "silu").set("attention_bias", false).set("mlp_bias", false);
  return json.set("tie_word_embeddings", config.tied);
}

GptConfig gpt2_of_json(const Json& json) {
  GptConfig config;
  config.context = json.at("n_positions").as_int();
  config.layers = json.at("n_layer").as_int();
  config.heads = json.at("n_head").as_int();
  config.features = json.at("n_embd").as_int();
  config.hidden = number(json, "n_inner", 0);
  config.epsilon = real(json, "layer_norm_epsilon", 1e-5);
  require(json, "activation_function", "gelu_new");
  require(json, "scale_attn_by_inverse_layer_idx", false);
  require(json, "scale_attn_weights", true);
  return config;
}

GptConfig llama_of_json(const Json& json) {
  GptConfig config;
  config.layout = "llama";
  config.context = json.at("max_position_embeddings").as_int();
  config.layers = json.at("num_hidden_layers").as_int();
  config.heads = json.at("num_attention_heads").as_int();
  config.key_value_heads = number(json, "num_key_value_heads", config.heads);
  config.features = json.at("hidden_size").as_int();
  config.hidden = json.at("intermediate_size").as_int();
  config.epsilon = real(json, "rms_norm_eps", 1e-6);
  // Newer files group the parameters of rotary embeddings in rope_parameters.
  const Json* const rope = given(json, "rope_parameters");
  config.rotary_max_wavelength = real(rope ? *rope : json, "rope_theta", 10000.0);
  if (rope) require(*rope, "rope_type", "default");
  require(json, "rope_scaling", nullptr);
  require(json, "head_dim", config.features / config.heads);
  require(json, "hidden_act", "silu");
  require(json, "attention_bias", false);
  require(json, "mlp_bias", false);
  return config;
}

}  // namespace

Json config_json(const GptConfig& config) {
  return config.is_llama() ? llama_json(config) : gpt2_json(config);
}

GptConfig config_of_json(const Json& json) {
  const std::string& type = json.at("model_type").as_string();
  if (type != "gpt2" && type != "llama") {
    fail(ErrorCode::kUnimplemented, "config.json: model_type: expected gpt2 or llama, got ", type);
  }
  GptConfig config = type == "llama" ? llama_of_json(json) : gpt2_of_json(json);
  config.vocabulary = json.at("vocab_size").as_int();
  const Json* const tied = given(json, "tie_word_embeddings");
  config.tied = tied ? tied->as_bool() : type == "gpt2";
  return config;
}

}  // namespace tutti::examples
