// Tests load_weights(): casts, Hugging Face indexes, mismatched names, parts of layers.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/variable.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::load_weights_test {

using testing::ElementsAre;
using testing::HasSubstr;
using thrown::empty_folder;
using thrown::expect_error;

Variable zeros(const std::string& name, const Shape& shape, DType dtype = DType::kFloat32) {
  return Variable(Tensor::zeros(shape, dtype), {.name = name});
}

/// Writes a file as another program would.
void write(const std::string& path, const std::vector<NamedTensor>& tensors) {
  write_safetensors(path, {tensors, {{"format", "pt"}}});
}

Tensor numbers(std::vector<float> values, DType dtype = DType::kFloat32) {
  const auto count = static_cast<std::int64_t>(values.size());
  return cast(Tensor::from<float>({count}, values), dtype);
}

TEST(LoadWeights, CastsFloatingPointTensorsToTheTypesOfVariables) {
  const std::string path = empty_folder() + "/w.safetensors";
  // 1.5 and -2 are exact in 16 bits; bfloat16 rounds 1 + 2^-10 to 1.
  write(path, {{"a", numbers({1.5F, -2.0F}, DType::kBFloat16)},
               {"b", numbers({1.5F}, DType::kFloat16)},
               {"c", numbers({1.0009765625F})}});
  Variable a = zeros("a", {2}), b = zeros("b", {1}, DType::kFloat64),
           c = zeros("c", {1}, DType::kBFloat16);
  const std::vector<std::string> lines = thrown::warnings_of([&] {
    load_weights(path, {a, b, c});
  });
  EXPECT_THAT(a.value().to_doubles(), ElementsAre(1.5, -2.0));
  EXPECT_EQ(a.value().dtype(), DType::kFloat32);
  EXPECT_THAT(b.value().to_doubles(), ElementsAre(1.5));
  EXPECT_THAT(c.value().to_doubles(), ElementsAre(1.0));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("3 tensors of " + path + " are cast"));
  EXPECT_THAT(lines[0], HasSubstr("'a' from bfloat16 to float32; values are rounded"));
  // An exact cast does not cause a warning.
  EXPECT_THAT(thrown::warnings_of([&] { load_weights(path, {a}, {.ignore_unknown = true}); }),
              ElementsAre());
}

TEST(LoadWeights, RefusesIntegersForFloatingPointVariables) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"a", numbers({1.0F}, DType::kInt32)}});
  EXPECT_INVALID(load_weights(path, {zeros("a", {1})}), "'a': expected float32 [1], got int32 [1]");
}

/// Writes a model of two files in Hugging Face's format.
std::string write_sharded_model() {
  const std::string folder = empty_folder();
  write(folder + "/model-00001-of-00002.safetensors",
        {{"a", numbers({1.0F}, DType::kBFloat16)}, {"b", numbers({2.0F, 3.0F})}});
  write(folder + "/model-00002-of-00002.safetensors", {{"c", numbers({4.0F})}});
  write_file_atomically(folder + "/model.safetensors.index.json",
                        R"({"metadata": {"total_size": 14}, "weight_map": {
                            "a": "model-00001-of-00002.safetensors",
                            "b": "model-00001-of-00002.safetensors",
                            "c": "model-00002-of-00002.safetensors"}})");
  return folder;
}

TEST(LoadWeights, ReadsTheFilesOfAnIndex) {
  const std::string folder = write_sharded_model();
  for (const std::string& path : {folder, folder + "/model.safetensors.index.json"}) {
    Variable a = zeros("x/a", {1}), b = zeros("b", {2}), c = zeros("c", {1});
    load_weights(path, {a, b, c}, {.rename = {{"a", "x/a"}}});
    EXPECT_THAT(a.value().to_doubles(), ElementsAre(1.0));
    EXPECT_THAT(b.value().to_doubles(), ElementsAre(2.0, 3.0));
    EXPECT_THAT(c.value().to_doubles(), ElementsAre(4.0));
  }
}

TEST(LoadWeights, ReadsTheSingleFileOfAFolder) {
  const std::string folder = empty_folder();
  write(folder + "/model.safetensors", {{"a", numbers({7.0F})}});
  Variable a = zeros("a", {1});
  load_weights(folder, {a});
  EXPECT_THAT(a.value().to_doubles(), ElementsAre(7.0));
}

TEST(LoadWeights, NamesWhatIsWrongWithAnIndex) {
  const std::string folder = write_sharded_model();
  const std::string index = folder + "/model.safetensors.index.json";
  const auto expect_refused = [&](const std::string& json, ErrorCode code,
                                  const std::vector<std::string>& words) {
    write_file_atomically(index, json);
    expect_error(code, words, [&] { load_weights(folder, {zeros("a", {1})}); });
  };
  expect_refused(R"({"weight_map": {"d": "model-00002-of-00002.safetensors"}})",
                 ErrorCode::kDataLoss, {"expected tensor 'd'", index, "got none"});
  expect_refused(R"({"weight_map": {"a": "model-00003.safetensors"}})", ErrorCode::kNotFound,
                 {folder + "/model-00003.safetensors"});
  expect_refused(R"({"weight_map": {"a": "../model.safetensors"}})", ErrorCode::kDataLoss,
                 {index, "a file beside the index", "'../model.safetensors'"});
  expect_refused(R"({"weights": {}})", ErrorCode::kDataLoss, {index, "weight_map"});
  expect_refused(R"({"weight_map")", ErrorCode::kDataLoss, {index});
}

TEST(LoadWeights, RefusesAFileWithoutAnyOfTheVariables) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"fc.weight", numbers({1.0F})}});
  Variable a = zeros("dense/kernel", {1});
  EXPECT_INVALID(load_weights(path, {a}, {.strict = false}),
                 "none of the 1 variables is in " + path, "'fc.weight'", "'dense/kernel'",
                 ".rename");
}

TEST(LoadWeights, NamesTheKindOfOtherFiles) {
  const std::string path = empty_folder() + "/w.safetensors";
  const auto expect_kind = [&](std::string_view bytes, const std::string& kind) {
    write_file_atomically(path, bytes);
    EXPECT_ERROR(load_weights(path, {zeros("a", {1})}), kDataLoss, path, "the file is ", kind);
  };
  expect_kind("", "an empty file");
  expect_kind("{\"a\": [1, 2, 3]}", "JSON");
  expect_kind("PK\x03\x04 and what follows it", "zip");
  expect_kind("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
              "Git LFS pointer");
  expect_kind("<!DOCTYPE html><html><body>Not found</body></html>", "HTML");
}

TEST(LoadWeights, NamesLayersThatAreCutIntoOtherNumbersOfParts) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"dense/kernel/part_0", numbers({1.0F, 2.0F})},
               {"dense/kernel/part_1", numbers({3.0F, 4.0F})}});
  const std::string rule = "a layer that is cut over devices is restored over the same number";
  const std::vector<Variable> three = {zeros("dense/kernel/part_0", {2}),
                                       zeros("dense/kernel/part_1", {1}),
                                       zeros("dense/kernel/part_2", {1})};
  EXPECT_INVALID(load_weights(path, three),
                 "'dense/kernel': expected it cut into 3, got it cut into 2", rule);
  EXPECT_INVALID(load_weights(path, {zeros("dense/kernel", {4})}),
                 "'dense/kernel': expected it not cut, got it cut into 2", rule);
  write(path, {{"dense/kernel", numbers({1.0F, 2.0F, 3.0F, 4.0F})}});
  EXPECT_INVALID(Checkpoint(three).restore(path),
                 "'dense/kernel': expected it cut into 3, got it not cut", rule);
}

}  // namespace tutti::load_weights_test
