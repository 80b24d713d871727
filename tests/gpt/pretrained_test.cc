// Tests loading and saving of GPT-2 and Llama files: logits equal those of the published forward
// passes, and rewritten files are bit-identical.
// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "tests/support/tensor_matchers.h"
#include "tests/support/thrown.h"

namespace tutti::pretrained_test {

using examples::Gpt;
using examples::load_pretrained;
using examples::read_config;
using ::testing::HasSubstr;
using thrown::error_of;

constexpr std::int64_t kVocabulary = 19, kFeatures = 12, kHidden = 20, kContext = 9;

/// Folder that the destructor removes.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path(::testing::TempDir() + "/gpt_" + name + std::to_string(::getpid())) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path;
};

/// Random tensors of given shapes, both as the contents of a file and as a map from names to
/// float64 tensors.
class FileOfWeights {
 public:
  void add(const std::string& name, const Shape& shape, double center = 0.0) {
    const RandomKey key{.seed = 5, .purpose = kUserPurpose, .a = file.tensors.size()};
    const Tensor value = random_normal(shape, key, center, 0.4);
    file.tensors.push_back({name, value});
    weights.emplace(name, cast(value, DType::kFloat64));
  }

  SafetensorsFile file{.tensors = {}, .metadata = {{"format", "pt"}}};
  std::map<std::string, Tensor> weights;
};

FileOfWeights gpt2_weights() {
  FileOfWeights f;
  const std::string t = "transformer.";
  f.add(t + "wte.weight", {kVocabulary, kFeatures});
  f.add(t + "wpe.weight", {kContext, kFeatures});
  const auto norm = [&](const std::string& name) {
    f.add(t + name + ".weight", {kFeatures}, 1.0);
    f.add(t + name + ".bias", {kFeatures});
  };
  const auto conv1d = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    f.add(t + name + ".weight", {in, out});
    f.add(t + name + ".bias", {out});
  };
  for (const char* h : {"h.0", "h.1"}) {
    norm(std::string(h) + ".ln_1");
    conv1d(std::string(h) + ".attn.c_attn", kFeatures, 3 * kFeatures);
    conv1d(std::string(h) + ".attn.c_proj", kFeatures, kFeatures);
    norm(std::string(h) + ".ln_2");
    conv1d(std::string(h) + ".mlp.c_fc", kFeatures, kHidden);
    conv1d(std::string(h) + ".mlp.c_proj", kHidden, kFeatures);
  }
  norm("ln_f");
  return f;
}

constexpr const char* kGpt2Config = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_inner": 20,
  "n_layer": 2, "n_positions": 9, "vocab_size": 19})";

FileOfWeights llama_weights(bool tied) {
  FileOfWeights f;
  f.add("model.embed_tokens.weight", {kVocabulary, kFeatures});
  constexpr std::int64_t kShared = 6;  // two query heads share one key-value head
  for (const std::string l : {"model.layers.0", "model.layers.1"}) {
    f.add(l + ".input_layernorm.weight", {kFeatures}, 1.0);
    f.add(l + ".self_attn.q_proj.weight", {kFeatures, kFeatures});
    f.add(l + ".self_attn.k_proj.weight", {kShared, kFeatures});
    f.add(l + ".self_attn.v_proj.weight", {kShared, kFeatures});
    f.add(l + ".self_attn.o_proj.weight", {kFeatures, kFeatures});
    f.add(l + ".post_attention_layernorm.weight", {kFeatures}, 1.0);
    f.add(l + ".mlp.gate_proj.weight", {kHidden, kFeatures});
    f.add(l + ".mlp.up_proj.weight", {kHidden, kFeatures});
    f.add(l + ".mlp.down_proj.weight", {kFeatures, kHidden});
  }
  f.add("model.norm.weight", {kFeatures}, 1.0);
  if (!tied) f.add("lm_head.weight", {kVocabulary, kFeatures});
  return f;
}

std::string llama_config(bool tied) {
  return concat(R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 12,
  "intermediate_size": 20, "max_position_embeddings": 9, "model_type": "llama",
  "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500.0, "vocab_size": 19,
  "tie_word_embeddings": )",
                tied ? "true}" : "false}");
}

void write_folder(const Folder& folder, const SafetensorsFile& file, const std::string& config) {
  write_safetensors(folder.path + "/model.safetensors", file);
  std::ofstream(folder.path + "/config.json") << config;
}

Tensor tokens_of() {
  return Tensor::from<std::int64_t>({1, kContext}, {3, 18, 0, 7, 7, 11, 2, 5, 16});
}

// The following functions implement the forward passes of modeling_gpt2.py and modeling_llama.py
// from Hugging Face's `transformers`, with the same tensor names.

/// Returns x * w^T, where w has shape [out, in], like torch.nn.Linear.
Tensor linear(const Tensor& x, const Tensor& w) { return matmul(x, w, {.transpose_b = true}); }

Tensor scaled(const Tensor& x, const Tensor& scale) {
  return x / sqrt(reduce_mean(square(x), {.axes = {-1}, .keep_dims = true}) + 1e-5) * scale;
}

/// Reshapes [steps, heads * length] to [1, heads, steps, length].
Tensor heads_of(const Tensor& x, std::int64_t heads) {
  return transpose(reshape(x, {1, kContext, heads, -1}), {0, 2, 1, 3});
}

Tensor attended(const Tensor& query, const Tensor& key, const Tensor& value) {
  const Tensor mixed = attention(query, key, value, {.is_causal = true});
  return reshape(transpose(mixed, {0, 2, 1, 3}), {kContext, kFeatures});
}

/// Implements rotate_half(), where features i and i + 3 of a head of 6 form a pair.
Tensor turned(const Tensor& heads) {
  std::vector<double> steps(kContext);
  std::iota(steps.begin(), steps.end(), 0.0);
  const Tensor angles = Tensor::from<double>({kContext, 1}, steps) *
                        pow(500.0, Tensor::from<double>({3}, {0.0, -1.0 / 3, -2.0 / 3}));
  const std::vector<Tensor> pair = split(heads, 2, 3);
  return concat({pair[0] * cos(angles) - pair[1] * sin(angles),
                 pair[1] * cos(angles) + pair[0] * sin(angles)},
                3);
}

Tensor gpt2_logits(const FileOfWeights& file) {
  const auto get = [&](const std::string& name) { return file.weights.at("transformer." + name); };
  const auto conv1d = [&](const Tensor& x, const std::string& name) {
    return matmul(x, get(name + ".weight")) + get(name + ".bias");
  };
  const auto norm = [&](const Tensor& x, const std::string& name) {
    const Tensor centered = x - reduce_mean(x, {.axes = {-1}, .keep_dims = true});
    return scaled(centered, get(name + ".weight")) + get(name + ".bias");
  };
  Tensor x = gather(get("wte.weight"), reshape(tokens_of(), {kContext})) + get("wpe.weight");
  for (const std::string h : {"h.0", "h.1"}) {
    const auto qkv = split(conv1d(norm(x, h + ".ln_1"), h + ".attn.c_attn"), 3, 1);
    x = x + conv1d(attended(heads_of(qkv[0], 3), heads_of(qkv[1], 3), heads_of(qkv[2], 3)),
                   h + ".attn.c_proj");
    x = x + conv1d(gelu_tanh(conv1d(norm(x, h + ".ln_2"), h + ".mlp.c_fc")), h + ".mlp.c_proj");
  }
  return linear(norm(x, "ln_f"), get("wte.weight"));
}

Tensor llama_logits(const FileOfWeights& file) {
  const auto get = [&](const std::string& name) { return file.weights.at(name + ".weight"); };
  Tensor x = gather(get("model.embed_tokens"), reshape(tokens_of(), {kContext}));
  for (const std::string l : {"model.layers.0", "model.layers.1"}) {
    const Tensor a = scaled(x, get(l + ".input_layernorm"));
    const auto heads = [&](const std::string& name, std::int64_t count) {
      return heads_of(linear(a, get(l + ".self_attn." + name)), count);
    };
    x = x +
        linear(attended(turned(heads("q_proj", 2)), turned(heads("k_proj", 1)), heads("v_proj", 1)),
               get(l + ".self_attn.o_proj"));
    const Tensor b = scaled(x, get(l + ".post_attention_layernorm"));
    const Tensor gate = silu(linear(b, get(l + ".mlp.gate_proj")));
    x = x + linear(gate * linear(b, get(l + ".mlp.up_proj")), get(l + ".mlp.down_proj"));
  }
  const bool tied = !file.weights.contains("lm_head.weight");
  return linear(scaled(x, get("model.norm")), get(tied ? "model.embed_tokens" : "lm_head"));
}

void expect_logits(const Gpt& model, const Tensor& expected) {
  testing::expect_tensor(model(tokens_of()), {1, kContext, kVocabulary}, expected.to_doubles(),
                         1e-4);
}

/// Expects that saving the model writes the same names and bits as those in `file`.
void expect_written_again(const Gpt& model, const SafetensorsFile& file) {
  const auto sorted = [](SafetensorsFile each) {
    std::ranges::sort(each.tensors, {}, &NamedTensor::name);
    return each.tensors;
  };
  const auto expected = sorted(file), actual = sorted(examples::pretrained_file(model));
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].name, expected[i].name);
    testing::expect_same_bits(actual[i].value, expected[i].value);
  }
}

TEST(PretrainedGpt2, LogitsMatchPublishedForwardPass) {
  const Folder folder("gpt2");
  const FileOfWeights written = gpt2_weights();
  write_folder(folder, written.file, kGpt2Config);
  Gpt model(read_config(folder.path));
  load_pretrained(model, folder.path);
  expect_logits(model, gpt2_logits(written));
  expect_written_again(model, written.file);
}

TEST(PretrainedLlama, LogitsMatchPublishedForwardPass) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const Folder folder("llama");
    const FileOfWeights written = llama_weights(tied);
    write_folder(folder, written.file, llama_config(tied));
    Gpt model(read_config(folder.path));
    load_pretrained(model, folder.path);
    expect_logits(model, llama_logits(written));
    expect_written_again(model, written.file);
  }
}

TEST(Pretrained, CanBeFineTunedSavedAndReloadedUnderMirroredStrategy) {
  const Folder folder("own"), again("again");
  write_folder(folder, llama_weights(false).file, llama_config(false));
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto scope = strategy.scope();
  Gpt model(read_config(folder.path));
  load_pretrained(model, folder.path);
  const Tensor before = model(tokens_of());
  model.compile(
      {.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "sparse_categorical_crossentropy"});
  const Tensor x = broadcast_to(tokens_of(), {4, 9});
  const History history =
      model.fit(x, roll(x, -1, 1), {.epochs = 5, .verbose = Verbosity::kSilent});
  EXPECT_LT(history["loss"].back(), 0.8 * history["loss"].front());

  save_pretrained(model.config(), examples::pretrained_file(model), "{}", again.path);
  Gpt loaded(read_config(again.path));
  load_pretrained(loaded, again.path);
  testing::expect_same_bits(loaded(tokens_of()), model(tokens_of()));
  EXPECT_NE(loaded(tokens_of()).to_doubles(), before.to_doubles());
}

TEST(Pretrained, LoadsSeveralFilesWith16BitWeights) {
  const Folder folder("parts");
  const FileOfWeights written = gpt2_weights();
  std::ofstream(folder.path + "/config.json") << kGpt2Config;
  SafetensorsFile files[2];
  Json map = Json::object();
  for (std::size_t i = 0; i < written.file.tensors.size(); ++i) {
    // GPT-2's first published files use names without the prefix "transformer.".
    const std::string name = written.file.tensors[i].name.substr(12);
    files[i % 2].tensors.push_back({name, cast(written.file.tensors[i].value, DType::kBFloat16)});
    map.set(name, i % 2 == 0 ? "a.safetensors" : "b.safetensors");
  }
  write_safetensors(folder.path + "/a.safetensors", files[0]);
  write_safetensors(folder.path + "/b.safetensors", files[1]);
  std::ofstream(folder.path + "/model.safetensors.index.json")
      << Json::object().set("weight_map", map).dump();
  Gpt model(read_config(folder.path));
  load_pretrained(model, folder.path);
  const Tensor table = model.variables()[0].value();
  testing::expect_same_bits(
      table, cast(cast(written.file.tensors[0].value, DType::kBFloat16), DType::kFloat32));
}

TEST(Pretrained, ErrorsNameTensorsAndSettings) {
  const Folder folder("wrong");
  const auto refused = [&](const SafetensorsFile& file, const std::string& config) {
    write_folder(folder, file, config);
    return error_of([&] {
      Gpt model(read_config(folder.path));
      load_pretrained(model, folder.path);
    });
  };
  SafetensorsFile file = gpt2_weights().file;
  file.tensors[1].value = Tensor::zeros({5, 12});
  EXPECT_THAT(refused(file, kGpt2Config),
              HasSubstr("tensor 'transformer.wpe.weight': expected as many elements as 1 x "
                        "position_embedding/embeddings [9, 12], got shape [5, 12]"));
  file.tensors.erase(file.tensors.begin() + 1);
  EXPECT_THAT(refused(file, kGpt2Config),
              HasSubstr("the file has no tensor 'transformer.wpe.weight'"));
  std::string config = llama_config(true);
  config.replace(config.find("silu"), 4, "relu");
  EXPECT_THAT(refused({}, config),
              HasSubstr(R"(config.json: hidden_act: expected "silu", got "relu")"));
  EXPECT_THAT(refused({}, R"({"model_type": "bert"})"), HasSubstr("expected gpt2 or llama"));
  EXPECT_THAT(refused({}, R"({"model_type": "gpt2"})"), HasSubstr("n_positions"));
}

TEST(GptConfig, RoundTripsThroughJson) {
  for (const std::string& text : {std::string(kGpt2Config), llama_config(false)}) {
    const examples::GptConfig config = examples::config_of_json(Json::parse(text));
    const Json once = examples::config_json(config);
    EXPECT_EQ(examples::config_json(examples::config_of_json(once)), once);
  }
  examples::GptConfig odd;
  odd.heads = 5;
  EXPECT_ERROR(Gpt model(odd), kInvalidArgument, "features divisible by heads");
}

}  // namespace tutti::pretrained_test
