// Tests MeshStrategy on two GPUs, which are simulated unless the environment names a module.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/mesh.h"
#include "tests/gpu/gpu_helpers.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/tutti.h"

namespace tutti::testing::mesh_test {
namespace {

/// Returns the losses of two epochs of a transformer on the devices of `options`.
std::vector<double> losses_on(MeshOptions options, const std::string& devices) {
  set_random_seed(17);
  options.local.devices = devices;
  MeshStrategy strategy(options);
  const auto scope = strategy.scope();
  Sequential model(Input{{4}}, Embedding(16, 8, {.name = "embedding"}),
                   TransformerBlock(2, 4, 16, {.use_causal_mask = true}), Flatten(),
                   Dense(4, {.name = "output"}));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.01},
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const Tensor x = cast(numbers({16, 4}, 1, 0.0, 16.0), DType::kInt64);
  const Tensor y = cast(numbers({16}, 2, 0.0, 4.0), DType::kInt64);
  return model.fit(x, y, {.epochs = 2, .batch_size = 8, .verbose = Verbosity::kSilent})["loss"];
}

TEST(MeshOnGpus, TrainingHasLossesOfCpus) {
  MeshOptions layers;
  layers.mesh = {{"data", 1}, {"model", 2}};
  layers.layout = transformer_tensor_parallel();
  for (const MeshOptions& options : {layers, fully_sharded(2)}) {
    SCOPED_TRACE(options.mesh.to_string());
    const std::vector<double> expected = losses_on(options, "cpu:0-1");
    const std::vector<double> actual = losses_on(options, "gpu:0-1");
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], 1e-3 * expected[i]);
    }
  }
}

}  // namespace
}  // namespace tutti::testing::mesh_test
