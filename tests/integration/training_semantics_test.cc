// Three ways of training, which give the same bits under every strategy.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/integration/seed_training.h"
#include "tutti/estimator.h"

namespace tutti {
namespace {

using seed_training::noise;

/// 25 batches, the same in each epoch.
Dataset repeated_rows() {
  return Dataset::from_tensor_slices({noise({250, 5}, 7), noise({250, 1}, 8)}).batch(10);
}
Sequential dropping_model() {
  set_random_seed(3);
  return Sequential(Input{{5}}, Dense(16, {.activation = "tanh"}), Dropout(0.2), Dense(1));
}

EstimatorSpec dropping_model_fn(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential model(Input{{5}}, Dense(16, {.activation = "tanh"}), Dropout(0.2), Dense(1));
  const Tensor y = model(features, {.training = mode == EstimatorMode::kTrain});
  return {.loss = losses::mean_squared_error(labels, y),
          .optimizer = AdamOptions{.learning_rate = 0.01}};
}

using Weights = std::vector<std::vector<double>>;

Weights weights_of(const std::vector<Variable>& variables) {
  Weights weights;
  for (const Variable& weight : variables) weights.push_back(weight.value().to_doubles());
  return weights;
}

Weights fitted(Strategy& strategy) {
  const auto scope = strategy.scope();
  Sequential model = dropping_model();
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "mse"});
  model.fit(repeated_rows(), {.epochs = 4, .verbose = Verbosity::kSilent});
  return weights_of(model.variables());
}

Weights trained_by_hand(Strategy& strategy) {
  DistributedDataset batches = strategy.distribute_dataset(repeated_rows().repeat(4));
  const auto scope = strategy.scope();
  Sequential model = dropping_model();
  Adam optimizer(model.trainable_variables(), {.learning_rate = 0.01});
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor each =
        losses::mean_squared_error(batch.labels(), model(batch.features(), {.training = true}));
    optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
  };
  const Weights before = weights_of(model.variables());
  for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 100);
  EXPECT_NE(weights_of(model.variables()), before);
  return weights_of(model.variables());
}

Weights estimated(const std::shared_ptr<Strategy>& strategy) {
  const int replicas = strategy->num_replicas_in_sync();
  set_random_seed(3);
  const std::string folder = ::testing::TempDir() + "/agreeing";
  std::filesystem::remove_all(folder);
  Estimator estimator(dropping_model_fn, {.model_dir = folder, .train_distribute = strategy});
  estimator.train([&] { return repeated_rows().unbatch().batch(10 / replicas).repeat(4); });
  EXPECT_EQ(estimator.global_step(), 100);
  return weights_of(estimator.variables());
}

TEST(TrainingSemantics, FitEstimatorAndCustomLoopAgreeUnderEveryStrategy) {
  for (const char* const name : {"one_device", "mirrored", "central_storage", "fully_sharded",
                                 "parameter_server", "multi_worker_mirrored"}) {
    SCOPED_TRACE(name);
    const auto make = [&]() -> std::shared_ptr<Strategy> {
      const bool is_one = std::string_view(name) == "one_device";
      return make_strategy(name, {.devices = is_one ? "cpu:0" : "cpu:0-1", .min_shard_bytes = 0});
    };
    const Weights expected = fitted(*make());
    ASSERT_EQ(expected.size(), 4u);
    EXPECT_EQ(trained_by_hand(*make()), expected);
    EXPECT_EQ(estimated(make()), expected);
  }
}

}  // namespace
}  // namespace tutti
