// Tests models trained by fit() under MeshStrategy: the variables' hash depends only on the blocks,
// not on the mesh, and checkpoints can be restored on other meshes and by other strategies.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/mesh/mesh_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/model/functional.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"

namespace tutti::mesh_tests {
namespace {

Tensor classes(const Shape& shape, std::int64_t count, std::uint64_t seed) {
  return cast(random_uniform(shape, {.seed = seed, .purpose = kUserPurpose}, 0.0,
                             static_cast<double>(count)),
              DType::kInt64);
}

/// Returns a network of two residual blocks for 8x8 images.
std::unique_ptr<Model> residual_network() {
  const Conv2DOptions same{.padding = "same", .use_bias = false};
  const auto image = Input{{8, 8, 3}};
  SymbolicTensor x = Relu()(BatchNormalization()(Conv2D(8, 3, same)(image)));
  for (int block = 0; block < 2; ++block) {
    const SymbolicTensor y = BatchNormalization()(Conv2D(8, 3, same)(x));
    x = MaxPooling2D(2)(Relu()(Add()({x, y})));
  }
  const SymbolicTensor y = Dense(4)(Dropout(0.25)(Flatten()(x)));
  return std::make_unique<Functional>(std::vector<SymbolicTensor>{image}, std::vector{y});
}

/// Model with its data and the layouts of its variables.
struct Case {
  std::string name;
  std::function<std::unique_ptr<Model>()> make;
  Tensor x, y;
  LayoutMap layout;
  bool has_bits_of_replicas = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back(
      {"transformer",
       [] {
         const TransformerBlockOptions block{.use_causal_mask = true};
         return std::make_unique<Sequential>(Input{{8}}, Embedding(32, 16, {.name = "embedding"}),
                                             TransformerBlock(4, 4, 32, block),
                                             TransformerBlock(4, 4, 32, block),
                                             Dense(32, {.name = "output"}));
       },
       classes({32, 8}, 32, 1), classes({32, 8}, 32, 2), transformer_tensor_parallel(), true});
  all.push_back({"lstm",
                 [] {
                   return std::make_unique<Sequential>(Input{{6}},
                                                       Embedding(32, 8, {.name = "embedding"}),
                                                       LSTM(16), Dense(16, "tanh"), Dense(4));
                 },
                 classes({32, 6}, 32, 3),
                 classes({32}, 4, 4),
                 {{"dense/kernel", {"", "model"}}, {"dense_1/kernel", {"model", ""}}}});
  all.push_back({"embedding",
                 [] {
                   return std::make_unique<Sequential>(
                       Input{{6}}, Embedding(64, 16, {.name = "embedding"}),
                       GlobalAveragePooling1D(), Dense(32, "relu"), Dense(4));
                 },
                 classes({32, 6}, 64, 5),
                 classes({32}, 4, 6),
                 {{"embedding/embeddings", {"model", ""}}, {"dense/kernel", {"", "model"}}},
                 true});
  all.push_back(
      {"resnet",
       residual_network,
       numbers({32, 8, 8, 3}, 7),
       classes({32}, 4, 8),
       {{"conv2d/kernel", {"", "", "", "model"}}, {"conv2d_1/kernel", {"", "", "model", ""}}}});
  return all;
}

struct Fitted {
  std::vector<double> losses, accuracies;  // one per epoch
  std::vector<std::vector<double>> variables = {};
  std::string hash = "";  // hash of the variables and of Adam's slots
};

std::vector<std::vector<double>> values_of(const Model& model) {
  std::vector<std::vector<double>> values;
  for (const Variable& variable : model.variables()) {
    values.push_back(variable.value().to_doubles());
  }
  return values;
}

/// Settings for a training run; 16 rows are two batches.
struct Training {
  int epochs = 1;
  std::int64_t rows = 16;
  std::string load = "", save = "";
};

Fitted fit(Strategy& strategy, const Case& c, const Training& training = {}) {
  set_random_seed(3);
  const auto scope = strategy.scope();
  const std::unique_ptr<Model> model = c.make();
  model->compile({.optimizer = AdamOptions{.learning_rate = 0.01},
                  .loss = "sparse_categorical_crossentropy",
                  .metrics = {"accuracy"}});
  if (!training.load.empty()) model->load_weights(training.load);
  const History history =
      model->fit(c.x.detached_rows(0, training.rows), c.y.detached_rows(0, training.rows),
                 {.epochs = training.epochs, .batch_size = 8, .verbose = Verbosity::kSilent});
  if (!training.save.empty()) model->save_weights(training.save);
  Fitted result{history.at("loss"), history.at("accuracy"), values_of(*model)};
  std::vector<Variable> variables = model->variables();
  for (const Variable& slot : model->optimizer().state_variables()) variables.push_back(slot);
  result.hash = hash_variables(variables);
  return result;
}

/// Scope in which models compute in float64.
class Float64Policy {
 public:
  Float64Policy() { set_dtype_policy("float64"); }
  ~Float64Policy() { set_dtype_policy(before_); }
  Float64Policy& operator=(Float64Policy&&) = delete;

 private:
  const DTypePolicy before_ = dtype_policy();
};

const DeviceMesh kMeshes[] = {{{"data", 1}, {"model", 1}}, {{"data", 1}, {"model", 2}},
                              {{"data", 2}, {"model", 1}}, {{"data", 2}, {"model", 2}},
                              {{"data", 1}, {"model", 4}}, {{"data", 4}, {"model", 2}}};

class MeshModels : public ::testing::TestWithParam<Case> {};

TEST_P(MeshModels, Float64MatchesOneDeviceOnEveryMesh) {
  const Float64Policy in_float64;
  OneDeviceStrategy one("cpu:0");
  const Fitted expected = fit(one, GetParam());
  for (const DeviceMesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.to_string());
    MeshStrategy strategy(on_mesh(mesh, GetParam().layout));
    const Fitted found = fit(strategy, GetParam());
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-12 * expected.losses[0]);
    EXPECT_EQ(found.accuracies, expected.accuracies);
    ASSERT_EQ(found.variables.size(), expected.variables.size());
    for (std::size_t i = 0; i < expected.variables.size(); ++i) {
      SCOPED_TRACE(i);
      testing::expect_near(found.variables[i], expected.variables[i], 1e-12);
    }
  }
}

TEST_P(MeshModels, LossMatchesOneDevice) {
  OneDeviceStrategy one("cpu:0");
  MeshStrategy mesh(on_mesh({{"data", 2}, {"model", 2}}, GetParam().layout));
  const Training training{.epochs = 2, .rows = 32};
  const Fitted expected = fit(one, GetParam(), training), found = fit(mesh, GetParam(), training);
  EXPECT_NEAR(found.losses[1], expected.losses[1], 2e-3);
  EXPECT_NEAR(found.accuracies[1], expected.accuracies[1], 0.07);
}

TEST_P(MeshModels, EqualBlocksGiveEqualBitsOnEveryMesh) {
  std::vector<std::string> hashes;
  for (const DeviceMesh& mesh : kMeshes) {
    MeshStrategy strategy(on_mesh(mesh, GetParam().layout, {{"data", 4}, {"model", 4}}));
    hashes.push_back(fit(strategy, GetParam()).hash);
  }
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
}

TEST(MeshSequences, MatchOneDeviceAndGiveSameBitsOnMeshesWithEqualBlocks) {
  const Case transformer = cases().front();
  OneDeviceStrategy one("cpu:0");
  const Fitted expected = fit(one, transformer);
  const std::vector<MeshAxis> blocks = {{"data", 2}, {"sequence", 2}};
  std::vector<std::string> hashes;
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 1}, {"sequence", 1}}, DeviceMesh{{"data", 1}, {"sequence", 2}},
        DeviceMesh{{"data", 2}, {"sequence", 2}}}) {
    MeshOptions options = on_mesh(mesh, {}, blocks);
    options.sequence_axis = "sequence";
    MeshStrategy strategy(options);
    const Fitted found = fit(strategy, transformer);
    EXPECT_NEAR(found.losses.back(), expected.losses.back(), 2e-3);
    hashes.push_back(found.hash);
  }
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
}

TEST(MeshDataAxis, MatchesMirroredBitForBit) {
  for (const Case& c : cases()) {
    if (!c.has_bits_of_replicas) continue;
    for (const int replicas : {2, 4}) {
      MirroredStrategy mirrored(LocalStrategyOptions{.devices = concat("cpu:0-", replicas - 1)});
      MeshStrategy mesh(on_mesh({{"data", replicas}}));
      EXPECT_EQ(fit(mesh, c).hash, fit(mirrored, c).hash) << c.name << ", " << replicas;
    }
  }
}

TEST_P(MeshModels, CheckpointRestoresOnDifferentMeshesAndStrategies) {
  const std::string file = ::testing::TempDir() + "mesh_" + GetParam().name + ".safetensors";
  MeshStrategy saving(on_mesh({{"data", 2}, {"model", 2}}, GetParam().layout));
  const Fitted expected = fit(saving, GetParam(), {.save = file});
  MeshStrategy wider(on_mesh({{"data", 1}, {"model", 4}}, GetParam().layout));
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0-1"});
  OneDeviceStrategy one("cpu:0");
  for (Strategy* strategy : std::initializer_list<Strategy*>{&wider, &mirrored, &one}) {
    const auto scope = strategy->scope();
    const std::unique_ptr<Model> model = GetParam().make();
    model->load_weights(file);
    EXPECT_EQ(values_of(*model), expected.variables) << strategy->name();
  }
}

INSTANTIATE_TEST_SUITE_P(All, MeshModels, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::mesh_tests
