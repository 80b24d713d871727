// Whole training under strategies, and how datasets reach steps.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "tests/integration/seed_training.h"
#include "tutti/estimator.h"
#include "tutti/model_parallel.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using seed_training::noise;
using seed_training::two_mirrored;

// In two calls, with anything between them: here the mean of two towers' gradients.
TEST(TrainingSemantics, SgdSubtractsTheScaledMeanOfTheGradients) {
  Variable w(Tensor::from<float>({2}, {1.0, -2.0}), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.5});
  const auto gradients_of_tower = [&](float slope) {
    GradientTape tape;
    return with_variables(tape.gradient(reduce_sum(square(w.value())) * slope, {&w, 1}), {&w, 1});
  };
  const std::vector<std::vector<GradientAndVariable>> towers = {gradients_of_tower(0.25f),
                                                                gradients_of_tower(1.25f)};
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{1.0, -2.0}));  // nothing is applied yet
  optimizer.apply_gradients(gradients_of(average_gradients(towers)));
  // w - 0.5 * mean(0.5 w, 2.5 w) = w / 4.
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{0.25, -0.5}));
}

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

TEST(TrainingSemantics, FitEstimatorAndCustomLoopAgreeUnderEveryStrategy) {
  const std::map<std::string, std::function<std::unique_ptr<Strategy>()>> strategies = {
      {"one device", [] { return std::make_unique<OneDeviceStrategy>("cpu:0"); }},
      {"mirrored",
       [] {
         return std::make_unique<MirroredStrategy>(LocalStrategyOptions{.devices = "cpu:0-1"});
       }},
      {"central",
       [] {
         return std::make_unique<CentralStorageStrategy>(
             CentralStorageOptions{{.devices = "cpu:0-1"}, std::nullopt});
       }},
      {"servers",
       [] {
         return std::make_unique<ParameterServerStrategy>(
             ParameterServerOptions{.local = {.devices = "cpu:0-1"}, .num_servers = 2});
       }},
  };
  const auto weights_of = [](const Sequential& model) {
    std::vector<std::vector<double>> weights;
    for (const Variable& weight : model.variables()) weights.push_back(weight.value().to_doubles());
    return weights;
  };
  for (const auto& [name, make] : strategies) {
    SCOPED_TRACE(name);
    std::vector<std::vector<double>> fitted, by_hand;
    {
      const auto strategy = make();
      const auto scope = strategy->scope();
      Sequential model = dropping_model();
      model.compile({.optimizer = AdamOptions{.learning_rate = 0.01}, .loss = "mse"});
      model.fit(repeated_rows(), {.epochs = 4, .verbose = Verbosity::kSilent});
      fitted = weights_of(model);
    }
    {
      const auto strategy = make();
      DistributedDataset batches = strategy->distribute_dataset(repeated_rows().repeat(4));
      const auto scope = strategy->scope();
      Sequential model = dropping_model();
      EXPECT_NE(fitted, weights_of(model));  // not yet
      Adam optimizer(model.trainable_variables(), {.learning_rate = 0.01});
      const auto step = [&](const Batch& batch) {
        GradientTape tape;
        const Tensor each =
            losses::mean_squared_error(batch.labels(), model(batch.features(), {.training = true}));
        optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
      };
      for (const PerReplica<Batch>& batch : batches) strategy->run(step, batch);
      EXPECT_EQ(optimizer.iterations().value().item_int(), 100);
      by_hand = weights_of(model);
    }
    ASSERT_EQ(fitted.size(), 4u);
    EXPECT_EQ(fitted, by_hand);
    std::shared_ptr<Strategy> strategy = make();
    const int replicas = strategy->num_replicas_in_sync();
    const auto folder =
        std::filesystem::temp_directory_path() / ("agreeing_" + std::to_string(::getpid()));
    set_random_seed(3);
    Estimator estimator(dropping_model_fn,
                        {.model_dir = folder.string(), .train_distribute = strategy});
    estimator.train([&] { return repeated_rows().unbatch().batch(10 / replicas).repeat(4); });
    std::vector<std::vector<double>> estimated;
    for (const Variable& each : estimator.variables())
      estimated.push_back(each.value().to_doubles());
    std::filesystem::remove_all(folder);
    EXPECT_EQ(estimator.global_step(), 100);
    EXPECT_EQ(fitted, estimated);
  }
}

TEST(TrainingSemantics, CopiesAreBitIdenticalAfterEveryStep) {
  MirroredStrategy strategy({.devices = "cpu:0-2"});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({noise({64, 5}, 5), noise({64, 1}, 6)}).batch(10));
  auto scope = strategy.scope();
  Sequential model(Input{{5}}, Dense(7, {.activation = "relu"}), Dense(1));
  Adam optimizer(model.trainable_variables());
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor each = losses::mean_squared_error(batch.labels(), model(batch.features()));
    optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
  };
  for (const PerReplica<Batch>& batch : batches) {
    strategy.run(step, batch);
    for (const Variable& weight : model.variables()) {
      const auto parts = weight.storage().local_components();
      ASSERT_EQ(parts.size(), 3U);
      for (const Tensor& part : parts) ASSERT_EQ(part.to_doubles(), parts[0].to_doubles());
    }
  }
}

TEST(TrainingSemantics, StepTakesFullAndPartialElements) {
  const auto rows_seen = [](Strategy& strategy) {
    std::vector<std::int64_t> rows;
    for (const auto& batch : strategy.distribute_dataset(Dataset::range(5).batch(4))) {
      const PerReplica<Tensor> counts = strategy.run(
          [](const Batch& part) { return Tensor(static_cast<float>(part.rows())); }, batch);
      for (const Tensor& count : counts) rows.push_back(static_cast<std::int64_t>(count.item()));
    }
    return rows;
  };
  OneDeviceStrategy one("cpu:0");
  EXPECT_EQ(rows_seen(one), (std::vector<std::int64_t>{4, 1}));
  MirroredStrategy mirrored = two_mirrored();
  EXPECT_EQ(rows_seen(mirrored), (std::vector<std::int64_t>{2, 2, 1, 0}));
  CentralStorageStrategy central({{.devices = "cpu:0-1"}, std::nullopt});
  EXPECT_EQ(rows_seen(central), (std::vector<std::int64_t>{2, 2, 1, 0}));
}

}  // namespace
}  // namespace tutti
