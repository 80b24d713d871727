// Weights that other frameworks name and lay out in their way, from files of another writer.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti {
namespace {

using model_tests::error_of;
using model_tests::expect_near;
using model_tests::weights_of;
using ::testing::HasSubstr;

// Written by foreign_weights/write.py with Python's safetensors package.
const std::string kFromPyTorch = TUTTI_FOREIGN_WEIGHTS "/pytorch.safetensors";
const std::string kFromKeras = TUTTI_FOREIGN_WEIGHTS "/keras.safetensors";

Tensor foreign_tensor(const std::string& path, const std::string& name) {
  for (const NamedTensor& tensor : parse_safetensors(read_file(path), path).tensors)
    if (tensor.name == name) return tensor.value;
  fail(ErrorCode::kNotFound, path, " has no ", name);
}

Sequential as_in_pytorch() {
  return Sequential(Input{{6, 6, 2}}, Conv2D(4, 3, {.padding = "same", .activation = "relu"}),
                    DepthwiseConv2D(3, {.depth_multiplier = 2}), GlobalAveragePooling2D(),
                    Dense(3));
}

LoadWeightsOptions names_of_pytorch() {
  return {.rename = {{"features.0.weight", "conv2d/kernel"},
                     {"features.0.bias", "conv2d/bias"},
                     {"features.2.weight", "depthwise_conv2d/kernel"},
                     {"features.2.bias", "depthwise_conv2d/bias"},
                     {"classifier.weight", "dense/kernel"},
                     {"classifier.bias", "dense/bias"}},
          .transpose = {"kernel"}};
}

TEST(ForeignWeights, OfPyTorchAreRenamedAndTransposed) {
  Sequential model = as_in_pytorch();
  model.load_weights(kFromPyTorch, names_of_pytorch());
  const Tensor y = model(foreign_tensor(kFromPyTorch, "test.x"));
  expect_near(y.to_doubles(), foreign_tensor(kFromPyTorch, "test.y").to_doubles(), 1e-5);
}

TEST(ForeignWeights, OfKerasAreRenamed) {
  Sequential model(Input{{3}}, Dense(6, "tanh"), Dense(2));
  model.load_weights(kFromKeras, {.rename = {{"layers/dense/vars/0", "dense/kernel"},
                                             {"layers/dense/vars/1", "dense/bias"},
                                             {"layers/dense_1/vars/0", "dense_1/kernel"},
                                             {"layers/dense_1/vars/1", "dense_1/bias"}}});
  const Tensor y = model(foreign_tensor(kFromKeras, "test/x"));
  expect_near(y.to_doubles(), foreign_tensor(kFromKeras, "test/y").to_doubles(), 1e-5);
}

TEST(ForeignWeights, MayBeOnlySomeOfThem) {
  Sequential model = as_in_pytorch();
  const std::vector<double> before = model.variables()[4].value().to_doubles();
  LoadWeightsOptions options = names_of_pytorch();
  options.rename.erase("classifier.weight");
  EXPECT_THAT(error_of([&] { model.load_weights(kFromPyTorch, options); }),
              HasSubstr("variable 'dense/kernel' is missing"));
  options.strict = false;
  model.load_weights(kFromPyTorch, options);
  EXPECT_EQ(model.variables()[4].value().to_doubles(), before);
  EXPECT_EQ(model.variables()[5].value().to_doubles(),
            foreign_tensor(kFromPyTorch, "classifier.bias").to_doubles());
}

TEST(ForeignWeights, ErrorsListWhatTheFileHasAndWhatIsWanted) {
  Sequential model = as_in_pytorch();
  const std::vector<double> before = weights_of(model);
  const auto refused = [&](const LoadWeightsOptions& options) {
    return error_of([&] { model.load_weights(kFromPyTorch, options); });
  };
  const std::string missing = refused({});
  EXPECT_THAT(missing, HasSubstr("load_weights: "));
  EXPECT_THAT(missing, HasSubstr(kFromPyTorch));
  EXPECT_THAT(missing, HasSubstr("the file has: 'bn.num_batches_tracked' int64 [], "
                                 "'classifier.bias' float32 [3], 'classifier.weight' float32 [3, "
                                 "8], "));
  EXPECT_THAT(missing,
              HasSubstr("; wanted are: 'conv2d/kernel' float32 [3, 3, 2, 4], 'conv2d/bias' "));

  LoadWeightsOptions options = names_of_pytorch();
  options.transpose = {};
  EXPECT_THAT(refused(options), HasSubstr("'dense/kernel': expected float32 [8, 3], got float32 "
                                          "[3, 8]"));
  options.strict = false;  // which forgives what is missing, not what has another shape
  EXPECT_THAT(refused(options), HasSubstr("'dense/kernel': expected float32 [8, 3]"));

  options = names_of_pytorch();
  options.transpose = {"kernle"};
  EXPECT_THAT(refused(options), HasSubstr("no variable's name has 'kernle' in it"));
  options = names_of_pytorch();
  options.rename["classifier.wieght"] = "dense/kernel";
  EXPECT_THAT(refused(options), HasSubstr("rename: the file has no 'classifier.wieght'"));
  options = names_of_pytorch();
  options.rename["classifier.weight"] = "dens/kernel";
  EXPECT_THAT(refused(options), HasSubstr("rename: there is no variable 'dens/kernel'"));
  options.rename["classifier.weight"] = "dense/bias";
  EXPECT_THAT(refused(options), HasSubstr("rename: 'dense/bias' stands there twice"));
  EXPECT_EQ(weights_of(model), before);
}

}  // namespace
}  // namespace tutti
