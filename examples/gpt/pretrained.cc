// Reads and writes GPTs as Hugging Face folders: config.json, model.safetensors, tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt/pretrained.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace tutti::examples {

// Mapping from variables to tensors in files.

namespace {

using Places = std::vector<PretrainedPlace>;

/// Adds entries that map a kernel and a bias, or a scale and an offset, to the file's tensors
/// "<tensor>.weight" and "<tensor>.bias".
void add_pair(Places& places, const std::string& variable, const char* first, const char* second,
              const std::string& tensor) {
  places.push_back({concat(variable, '/', first), tensor + ".weight"});
  places.push_back({concat(variable, '/', second), tensor + ".bias"});
}

/// Adds the entries for the weights of a GPT-2 block. The file's kernels have tutti's layout, and
/// one tensor in the file holds the query, key and value weights.
void add_gpt2_block(Places& places, const std::string& block, const std::string& tensor) {
  add_pair(places, block + "/attention_norm", "gamma", "beta", tensor + ".ln_1");
  for (const char* kind : {"kernel", "bias"}) {
    std::int64_t part = 0;
    for (const char* each : {"query", "key", "value"}) {
      const char* const suffix = kind == std::string_view("kernel") ? ".weight" : ".bias";
      places.push_back({concat(block, "/attention/", each, '/', kind),
                        concat(tensor, ".attn.c_attn", suffix), false, part++, 3});
    }
  }
  add_pair(places, block + "/attention/attention_output", "kernel", "bias",
           tensor + ".attn.c_proj");
  add_pair(places, block + "/feed_forward_norm", "gamma", "beta", tensor + ".ln_2");
  add_pair(places, block + "/up", "kernel", "bias", tensor + ".mlp.c_fc");
  add_pair(places, block + "/down", "kernel", "bias", tensor + ".mlp.c_proj");
}

void add_llama_block(Places& places, const std::string& block, const std::string& tensor) {
  const auto add = [&](const char* variable, const char* name, bool is_transposed = true) {
    places.push_back(
        {concat(block, '/', variable), concat(tensor, '.', name, ".weight"), is_transposed});
  };
  add("attention_norm/scale", "input_layernorm", false);
  add("attention/query/kernel", "self_attn.q_proj");
  add("attention/key/kernel", "self_attn.k_proj");
  add("attention/value/kernel", "self_attn.v_proj");
  add("attention/attention_output/kernel", "self_attn.o_proj");
  add("feed_forward_norm/scale", "post_attention_layernorm", false);
  add("feed_forward/gate/kernel", "mlp.gate_proj");
  add("feed_forward/up/kernel", "mlp.up_proj");
  add("feed_forward/down/kernel", "mlp.down_proj");
}

}  // namespace

std::vector<PretrainedPlace> pretrained_places(const GptConfig& config) {
  Places places;
  const bool is_llama = config.is_llama();
  const std::string root = is_llama ? "model." : "transformer.";
  places.push_back(
      {"embedding/embeddings", root + (is_llama ? "embed_tokens" : "wte") + ".weight"});
  if (!is_llama) places.push_back({"position_embedding/embeddings", root + "wpe.weight"});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string block = concat("block_", i);
    if (is_llama) {
      add_llama_block(places, block, concat(root, "layers.", i));
    } else {
      add_gpt2_block(places, block, concat(root, "h.", i));
    }
  }
  if (is_llama) {
    places.push_back({"norm/scale", root + "norm.weight"});
  } else {
    add_pair(places, "norm", "gamma", "beta", root + "ln_f");
  }
  if (!config.tied) places.push_back({"output/kernel", "lm_head.weight", true});
  return places;
}

// Files.

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail(ErrorCode::kNotFound, "gpt: cannot read ", path);
  return std::move(text).str();
}

GptConfig read_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return config_of_json(Json::parse(text_of(path), path));
}

BytePairTokenizer read_tokenizer_of(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  if (std::filesystem::exists(path)) return read_tokenizer(path);
  return read_gpt2_tokenizer(folder + "/vocab.json", folder + "/merges.txt", {"<|endoftext|>"});
}

namespace {

std::map<std::string, Tensor> read_tensors(const std::string& folder) {
  std::set<std::string> files = {"model.safetensors"};
  const std::string index = folder + "/model.safetensors.index.json";
  if (std::filesystem::exists(index)) {
    files.clear();
    const Json json = Json::parse(text_of(index), index);
    for (const auto& [tensor, file] : json.at("weight_map").as_object())
      files.insert(file.as_string());
  }
  std::map<std::string, Tensor> tensors;
  for (const std::string& file : files)
    for (const NamedTensor& tensor : read_safetensors(concat(folder, '/', file)).tensors)
      tensors.insert_or_assign(tensor.name, tensor.value);
  return tensors;
}

/// Returns a tensor by name. GPT-2's original files lack the prefix "transformer.".
const Tensor& find_tensor(const std::map<std::string, Tensor>& tensors, const std::string& name) {
  constexpr std::string_view kRoot = "transformer.";
  auto found = tensors.find(name);
  if (found == tensors.end() && name.starts_with(kRoot))
    found = tensors.find(name.substr(kRoot.size()));
  if (found != tensors.end()) return found->second;
  fail(ErrorCode::kNotFound, "gpt: the file has no tensor '", name, "'");
}

Variable find_variable(const Gpt& model, const std::string& name) {
  for (const Variable& variable : model.variables())
    if (variable.name() == name) return variable;
  fail(ErrorCode::kInternal, "gpt: the model has no variable '", name, "'");
}

/// Returns a kernel as a matrix with merged heads, and a bias as a vector, as in the file.
Tensor as_stored(const PretrainedPlace& place, const Tensor& value) {
  const Shape& shape = value.shape();
  if (place.tensor.ends_with(".bias")) return reshape(value, {-1});
  if (shape.rank() < 3) return value;
  const bool from_heads = place.variable.ends_with("attention_output/kernel");
  return from_heads ? reshape(value, {-1, shape[2]}) : reshape(value, {shape[0], -1});
}

}  // namespace

void load_pretrained(Gpt& model, const std::string& folder) {
  const std::map<std::string, Tensor> tensors = read_tensors(folder);
  for (const PretrainedPlace& place : pretrained_places(model.config())) {
    Variable variable = find_variable(model, place.variable);
    Tensor value = cast(find_tensor(tensors, place.tensor), variable.dtype());
    if (value.num_elements() != place.num_parts * variable.shape().num_elements()) {
      fail(ErrorCode::kInvalidArgument, "gpt: tensor '", place.tensor,
           "': expected as many elements as ", place.num_parts, " x ", variable.name(), ' ',
           variable.shape(), ", got shape ", value.shape(),
           "; check that config.json belongs to these weights");
    }
    if (place.num_parts > 1)
      value =
          split(value, static_cast<int>(place.num_parts), -1)[static_cast<std::size_t>(place.part)];
    if (place.is_transposed) value = transpose(value);
    variable.assign(reshape(value, variable.shape()));
  }
}

SafetensorsFile pretrained_file(const Gpt& model) {
  SafetensorsFile file{.tensors = {}, .metadata = {{"format", "pt"}}};
  std::vector<Tensor> parts;
  for (const PretrainedPlace& place : pretrained_places(model.config())) {
    const Tensor value = find_variable(model, place.variable).value().to(Device{});
    parts.push_back(as_stored(place, value));
    if (place.part + 1 < place.num_parts) continue;
    Tensor whole = parts.size() > 1 ? concat(parts, -1) : parts[0];
    if (place.is_transposed) whole = transpose(whole);
    file.tensors.push_back({place.tensor, whole});
    parts.clear();
  }
  return file;
}

void save_pretrained(const GptConfig& config, const SafetensorsFile& weights,
                     std::string_view tokenizer_json, const std::string& folder) {
  write_safetensors(folder + "/model.safetensors", weights);
  std::ofstream(folder + "/config.json") << config_json(config).dump(2) << '\n';
  std::ofstream tokenizer(folder + "/tokenizer.json", std::ios::binary);
  tokenizer << tokenizer_json;
  if (!tokenizer.flush()) fail(ErrorCode::kUnavailable, "gpt: cannot write to ", folder);
}

}  // namespace tutti::examples
