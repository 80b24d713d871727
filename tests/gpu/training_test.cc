// Compares training on GPUs (with fit(), with a custom loop and on a mesh) with training on CPUs.
// The two GPUs are simulated unless the environment names a module.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/gpu/gpu_helpers.h"
#include "tutti/mesh.h"
#include "tutti/model/callbacks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tutti.h"

namespace tutti::testing::training_test {

constexpr std::int64_t kRows = 48;

/// Returns labels [48] with classes 0, 1, 2 that depend on the features [48, 6, 6, 2].
Tensor labels_of(const Tensor& features) {
  std::vector<std::int64_t> labels;
  for (std::int64_t row = 0; row < features.shape()[0]; ++row) {
    double sum = 0.0;
    for (const double value : features.detached_rows(row, 1).to_doubles()) sum += value;
    labels.push_back(sum < -2.0 ? 0 : sum > 2.0 ? 2 : 1);
  }
  return Tensor::from<std::int64_t>(Shape{features.shape()[0]}, labels);
}

Sequential small_network() {
  return Sequential(Input{{6, 6, 2}}, Conv2D(4, 3, {.activation = "relu"}), BatchNormalization(),
                    MaxPooling2D(2), Flatten(), Dense(8, {.activation = "tanh"}), Dense(3));
}

struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> weights;
  Logs evaluated;
  Tensor predicted;
};

Trained trained_by_fit(Device device, const OptimizerSpec& optimizer) {
  set_random_seed(17);
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  Sequential model = small_network();
  model.compile({.optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {"accuracy"}});
  const Tensor x = numbers({kRows, 6, 6, 2}, 1);
  const Tensor y = labels_of(x);
  Trained result;
  result.losses =
      model.fit(x, y, {.epochs = 3, .batch_size = 20, .verbose = Verbosity::kSilent})["loss"];
  for (const Variable& variable : model.variables()) {
    EXPECT_EQ(variable.value().device(), device);
    result.weights.push_back(variable.value().to(Device{}));
  }
  result.evaluated = model.evaluate(x, y);
  result.predicted = model.predict(x);
  return result;
}

void compare_training(const OptimizerSpec& optimizer) {
  const Trained expected = trained_by_fit(Device{}, optimizer);
  const Trained actual = trained_by_fit(kGpu, optimizer);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-3 * expected.losses[i]) << "epoch " << i;
  }
  for (std::size_t i = 0; i < expected.weights.size(); ++i) {
    SCOPED_TRACE(concat("weight ", i));
    expect_near(actual.weights[i], expected.weights[i], 5e-3);
  }
  EXPECT_NEAR(actual.evaluated.at("loss"), expected.evaluated.at("loss"), 5e-3);
  EXPECT_EQ(actual.predicted.device(), Device{});
  expect_near(actual.predicted, expected.predicted, 1e-2);
}

TEST(GpuTraining, FitAgreesWithTheCpu) {
  compare_training(SgdOptions{.learning_rate = 0.05, .momentum = 0.9});
}

TEST(GpuTraining, FitWithClippingAndAveragesAgreesWithTheCpu) {
  AdamOptions options{.learning_rate = 0.01};
  options.clipping.global_clipnorm = 0.5;
  options.ema = EmaOptions{.momentum = 0.9};
  compare_training(options);
}

/// Returns the losses of three steps on a mesh of two devices. One layer is sharded by columns and
/// the next by rows. Their output is multiplied by a matrix whose shards are passed around a ring.
std::vector<double> losses_on_mesh(const std::string& devices) {
  set_random_seed(5);
  MeshOptions options;
  options.mesh = {{"m", 2}};
  options.layout = {{"up/kernel", {"", "m"}}, {"up/bias", {"m"}}, {"down/kernel", {"m", ""}}};
  options.local.devices = devices;
  MeshStrategy strategy(options);
  const auto scope = strategy.scope();
  const Sequential model(Input{{6}}, Dense(16, {.activation = "relu", .name = "up"}),
                         Dense(4, {.name = "down"}));
  const Variable last(numbers({4, 3}, 2), {.name = "last"});
  std::vector<Variable> variables = model.trainable_variables();
  variables.push_back(last);
  Sgd optimizer(variables, 0.1);
  const auto ring_product = [](LocalMapContext& context, const std::vector<Tensor>& in) {
    const int own = context.index("m");
    const auto columns = [&](int owner) { return slice(in[0], {0, owner * 2}, {-1, 2}); };
    return std::vector{matmul(columns(own), in[1]) +
                       matmul(columns(1 - own), context.send_receive(in[1], "m", 1))};
  };
  const Tensor x = numbers({12, 6}, 1), y = argmax(slice(x, {0, 0}, {-1, 3}), 1);
  std::vector<double> losses;
  const Dataset data = Dataset::from_tensor_slices(x, y).batch(12).repeat(3);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const PerReplica<Tensor> loss = strategy.run(
        [&](const Batch& rows) {
          GradientTape tape;
          const Tensor logits = local_map(ring_product, {model(rows.features()), last.value()},
                                          {{"m", ""}, {"m", ""}}, {{"m", ""}})[0];
          const Tensor mean =
              reduce_mean(losses::sparse_categorical_crossentropy(rows.labels(), logits));
          optimizer.minimize(tape, mean);
          return mean;
        },
        batch);
    losses.push_back(loss[0].item_double());
  }
  return losses;
}

/// Trains a transformer for two epochs on a mesh of `devices`; returns the losses.
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

TEST(MeshOnGpus, TrainingLossesMatchCpus) {
  MeshOptions layers, sequences;
  sequences.mesh = {{"data", 1}, {"sequence", 2}};
  sequences.sequence_axis = "sequence";
  layers.mesh = {{"data", 1}, {"model", 2}};
  layers.layout = transformer_tensor_parallel();
  for (const MeshOptions& options : {layers, sequences, fully_sharded(2)}) {
    SCOPED_TRACE(options.mesh.to_string());
    const std::vector<double> expected = losses_on(options, "cpu:0-1");
    const std::vector<double> actual = losses_on(options, "gpu:0-1");
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], 1e-3 * expected[i]);
    }
  }
}

TEST(MeshOnGpus, LocalMapLossesMatchCpuLosses) {
  const std::vector<double> expected = losses_on_mesh("cpu:0-1");
  const std::vector<double> actual = losses_on_mesh("gpu:0-1");
  EXPECT_THAT(actual, ::testing::Pointwise(::testing::DoubleNear(1e-3), expected));
  EXPECT_LT(actual[2], actual[0]);
}

class SimulatedGpus final : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_SIMULATED_GPUS", "2", /*overwrite=*/0);
    // The module also contains the simulated NCCL. The real NCCL would find no GPU.
    ::setenv("TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ASSERT_GE(logical_gpus().size(), 2u) << gpu_unavailable_reason();
  }
};

const ::testing::Environment* const kSimulatedGpus =
    AddGlobalTestEnvironment(std::make_unique<SimulatedGpus>().release());

TEST(SimulatedGpus, AreTheDefaultDevices) {
  ASSERT_NE(kSimulatedGpus, nullptr);
  const std::vector<Device> devices = default_devices();
  ASSERT_EQ(devices.size(), logical_gpus().size());
  EXPECT_EQ(devices.front(), kGpu);
}

}  // namespace tutti::testing::training_test
