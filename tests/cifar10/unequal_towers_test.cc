// Towers on unequal devices: shares of the batch, the same training, and what the flags say.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "examples/cifar10/tower_trainer.h"
#include "examples/cifar10/train_flags.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace examples::cifar10;
using ::testing::ElementsAre;

namespace unequal_towers_test {

constexpr auto kTimeLimit = std::chrono::seconds(110);
constexpr std::int64_t kBatch = 8;  // of all towers

TowerTrainerOptions options_for(const std::string& devices, std::vector<double> weights = {}) {
  const std::vector<Device> towers = parse_devices(devices);
  return {.devices = towers,
          .batch_size = kBatch / static_cast<std::int64_t>(towers.size()),
          .tower_weights = std::move(weights)};
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> weights;
  std::vector<double> averages;  // of losses
  std::vector<double> rows;      // of the last step's towers
};

Trained train(const TowerTrainerOptions& options, int steps) {
  set_random_seed(4);
  TowerTrainer trainer(options);
  const Tensor images = random_normal({kBatch * steps, 24, 24, 3}, {.seed = 11});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < kBatch * steps; ++i) labels.push_back(i * 7 % 10);
  const Dataset data =
      Dataset::from_tensor_slices({images, Tensor::from<std::int64_t>({kBatch * steps}, labels)});
  Trained trained;
  for (const auto& batch : trainer.strategy().distribute_dataset(data.batch(kBatch))) {
    const StepResult result = trainer.step(batch);
    trained.losses.push_back(result.loss);
    trained.rows = result.tower_rows;
  }
  for (const Variable& variable : trainer.variables().variables()) {
    const std::vector<double> own = variable.value().to_doubles();
    trained.weights.insert(trained.weights.end(), own.begin(), own.end());
  }
  for (const Variable& average : trainer.loss_averages().averages()) {
    trained.averages.push_back(average.value().item_double());
  }
  return trained;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance);
}

}  // namespace unequal_towers_test

TEST(UnequalTowers, TowersWithSharesOf3And1TrainAsOneTower) {
  using namespace unequal_towers_test;
  const testing::HangWatchdog watchdog("unequal towers", kTimeLimit);
  const Trained one = train(options_for("cpu:0"), 10);
  const Trained towers = train(options_for("cpu:0-1", {3, 1}), 10);
  EXPECT_THAT(towers.rows, ElementsAre(6, 2));
  expect_near(towers.weights, one.weights, 1e-6);
  expect_near(towers.losses, one.losses, 1e-4);
  expect_near(towers.averages, one.averages, 1e-4);
  EXPECT_NE(one.losses.front(), one.losses.back());
}

// Of 8 rows a tower with a share of 1 in 100 gets none: it has no loss and does not count.
TEST(UnequalTowers, ATowerWithoutRowsDoesNotCount) {
  using namespace unequal_towers_test;
  const testing::HangWatchdog watchdog("a tower without rows", kTimeLimit);
  const Trained towers = train(options_for("cpu:0-1", {99, 1}), 2);
  EXPECT_THAT(towers.rows, ElementsAre(8, 0));
  const Trained one = train(options_for("cpu:0"), 2);
  expect_near(towers.weights, one.weights, 1e-6);
  expect_near(towers.losses, one.losses, 1e-5);
}

TEST(UnequalTowers, TheFlagTakesAPositiveNumberPerTower) {
  TrainFlags flags;
  EXPECT_TRUE(tower_weights(flags, 2).empty());
  flags.tower_weights = "3,1.5";
  EXPECT_THAT(tower_weights(flags, 2), ElementsAre(3.0, 1.5));
  for (const char* text : {"3", "3,0", "3,-1", "3,x", "3,", "3,1,1", "3,nan"}) {
    flags.tower_weights = text;
    testing::expect_error(ErrorCode::kInvalidArgument,
                          {"--tower_weights: expected 2 positive numbers", text},
                          [&] { (void)tower_weights(flags, 2); });
  }
}

TEST(UnequalTowers, MemoryReportOfTutorialTowers) {
  using namespace unequal_towers_test;
  const testing::HangWatchdog watchdog("towers", kTimeLimit);
  const TowerTrainer trainer(options_for("cpu:0-1"));
  const auto groups = trainer.variable_groups();
  const std::vector<Device> devices = parse_devices("cpu:0-1");
  const auto first = memory_under(VariablePolicy::kFirstDevice, groups, devices);
  const auto mirrored = memory_under(VariablePolicy::kMirrored, groups, devices);
  EXPECT_EQ(first[0].bytes[0], 4u * 1'068'298u);
  EXPECT_EQ(first[1].total(), 0u);
  EXPECT_EQ(mirrored[0].bytes, mirrored[1].bytes);
  EXPECT_EQ(mirrored[0].bytes[0], 4u * 1'068'298u);
  EXPECT_EQ(memory_by_device(groups, devices)[0].bytes, first[0].bytes);
}

}  // namespace
}  // namespace tutti
