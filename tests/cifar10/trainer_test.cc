// Tests training with towers: shared variables, one update with the mean gradient, moving averages,
// checkpoints, summary tags.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/tower_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "examples/cifar10/evaluation.h"
#include "examples/cifar10/placement_log.h"
#include "examples/cifar10/train_summaries.h"
#include "tests/support/protobuf_fields.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/data/records.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::cifar10_trainer_test {
using namespace examples::cifar10;
using protobuf_fields::fields_of;
using ::testing::ElementsAre;

std::unique_ptr<TowerTrainer> trainer_on(const std::string& devices, std::int64_t batch_size,
                                         Device variables = {}) {
  set_random_seed(4);
  return std::make_unique<TowerTrainer>(TowerTrainerOptions{
      .devices = parse_devices(devices), .variable_device = variables, .batch_size = batch_size});
}

/// Returns batches that are equal for all trainers with the same global batch size. Batches for
/// different steps have different rows.
DistributedDataset batches_for(TowerTrainer& trainer, int steps) {
  const std::int64_t rows = trainer.global_batch_size() * steps;
  const Tensor images = random_normal({rows, 24, 24, 3}, {.seed = 11, .purpose = kUserPurpose});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i * 7 % 10);
  return trainer.strategy().distribute_dataset(
      Dataset::from_tensor_slices({images, Tensor::from<std::int64_t>({rows}, labels)})
          .batch(trainer.global_batch_size()));
}

/// Trains for `steps` steps and returns the result of each step.
std::vector<StepResult> train(TowerTrainer& trainer, int steps, StepOptions options = {}) {
  std::vector<StepResult> results;
  for (const PerReplica<Batch>& batch : batches_for(trainer, steps)) {
    results.push_back(trainer.step(batch, options));
  }
  return results;
}

std::vector<double> all_values(const std::vector<Variable>& variables) {
  std::vector<double> all;
  for (const Variable& variable : variables) {
    const std::vector<double> own = variable.value().to_doubles();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Returns the summary tags of all event files in a folder.
std::multiset<std::string> tags_in(const std::string& folder) {
  std::multiset<std::string> tags;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const Element& record : tfrecord_dataset({entry.path().string()})) {
      const auto bytes = record[0].host_span<std::uint8_t>();
      const std::string_view event(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const std::string_view value = fields_of(fields_of(event)[5])[1];
      if (!value.empty()) tags.emplace(fields_of(value)[1]);
    }
  }
  return tags;
}

std::multiset<std::string> tags_with(const std::string& devices) {
  const std::string folder = ::testing::TempDir() + "tutti_cifar10_tags_" + devices;
  std::filesystem::remove_all(folder);
  const auto trainer = trainer_on(devices, 2);
  TrainSummaries(folder).write(*trainer, train(*trainer, 1, {.with_summaries = true})[0], 0);
  return tags_in(folder);
}

// Compares weights after only three steps, because two runs diverge later: a different order of
// additions (which also depends on the processor) may change which value in a pooling window is
// largest. A float32 weight of 0.1 has a precision of 7e-9.
TEST(TowerTrainer, TwoTowersMatchOneTowerOnFullBatch) {
  const auto one = trainer_on("cpu:0", 8);
  const auto two = trainer_on("cpu:0-1", 4);
  const std::vector<StepResult> first_of_one = train(*one, 3), first_of_two = train(*two, 3);
  EXPECT_LT(largest_difference(all_values(one->variables().variables()),
                               all_values(two->variables().variables())),
            1e-6);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_NEAR(first_of_one[step].loss, first_of_two[step].loss, 1e-5) << step;
  }
  const std::vector<StepResult> losses_of_one = train(*one, 17), losses_of_two = train(*two, 17);
  for (std::size_t step = 0; step < 17; ++step) {
    EXPECT_NEAR(losses_of_one[step].loss, losses_of_two[step].loss, 0.01) << step;
  }
  EXPECT_NE(losses_of_one[16].loss, first_of_one[0].loss);
}

TEST(TowerTrainer, TowersShareTenVariablesAndOneStepCounter) {
  for (const char* devices : {"cpu:0", "cpu:0-3"}) {
    const auto trainer = trainer_on(devices, 1);
    EXPECT_EQ(trainer->variables().trainable_variables().size(), 10u);
    EXPECT_EQ(trainer->global_step().dtype(), DType::kInt64);
    EXPECT_FALSE(trainer->global_step().trainable());
    EXPECT_EQ(trainer->global_step().shape(), Shape{});
    EXPECT_EQ(trainer->global_step().value().item_int(), 0);
    train(*trainer, 3);
    // The counter is incremented once per step, not once per tower.
    EXPECT_EQ(trainer->global_step().value().item_int(), 3);
  }
}

TEST(TowerTrainer, OnlyLossNamesContainTowerName) {
  const auto trainer = trainer_on("cpu:0-1", 4);
  const StepResult result = train(*trainer, 1)[0];
  ASSERT_EQ(result.tower_losses.size(), 2u);
  double mean = 0.0;
  for (std::size_t t = 0; t < 2; ++t) {
    // five weight losses, a cross-entropy and the total
    ASSERT_EQ(result.tower_losses[t].size(), 7u);
    EXPECT_EQ(result.tower_losses[t][6].name, concat("tower_", t, "/total_loss"));
    EXPECT_NEAR(result.tower_losses[t][6].value.item(), 4.676, 0.08);
    mean += result.tower_losses[t][6].value.item() / 2.0;
  }
  EXPECT_NEAR(result.loss, mean, 1e-6);
  EXPECT_NE(result.tower_losses[0][5].value.item(), result.tower_losses[1][5].value.item());
  for (const Variable& variable : trainer->variables().variables()) {
    EXPECT_FALSE(variable.name().starts_with("tower"));
  }
}

// The variable device stores the variables, averages the gradients and applies the mean. Each tower
// computes on its own device.
TEST(TowerTrainer, PlacesVariablesAndTowersOnTheirDevices) {
  const Device third{DeviceType::kCpu, 2};
  const auto trainer = trainer_on("cpu:0-1", 2, third);
  const std::vector<std::string> variables = placement_of(trainer->variables().variables());
  ASSERT_EQ(variables.size(), 10u);
  EXPECT_EQ(variables[0],
            "conv1/weights: (Variable): /job:localhost/replica:0/task:0/device:CPU:2");
  std::size_t bytes = 0;
  for (const Variable& variable : trainer->variables().variables()) {
    EXPECT_THAT(variable.storage().devices(), ElementsAre(third));
    bytes += variable.value().num_bytes();
  }
  EXPECT_EQ(bytes, 4u * 1'068'298u);

  const StepResult result = train(*trainer, 1, {.with_summaries = true, .with_placement = true})[0];
  int forward[2] = {}, backward[2] = {};
  for (const std::string& line : result.placement) {
    for (const int t : {0, 1}) {
      if (!line.starts_with(concat("tower_", t, "/"))) continue;
      EXPECT_TRUE(line.ends_with(concat("/task:0/device:CPU:", t))) << line;
      ++(line.find("/gradients/") == std::string::npos ? forward : backward)[t];
    }
  }
  EXPECT_GT(forward[0], 15);
  EXPECT_GT(backward[0], 15);
  EXPECT_EQ(forward[0], forward[1]);
  EXPECT_EQ(backward[0], backward[1]);
  for (const auto& [gradient, variable] : result.gradients) {
    EXPECT_EQ(gradient.dense().device(), third) << variable.name();
  }
}

TEST(TowerTrainer, SummaryTagsDoNotDependOnNumberOfTowers) {
  const std::multiset<std::string> one = tags_with("cpu:0"), four = tags_with("cpu:0-3");
  EXPECT_EQ(one, four);
  // 7 losses (raw and averaged), the learning rate, activations and sparsities of 5 layers, 10
  // variables and 10 gradients.
  EXPECT_EQ(one.size(), 7u * 2u + 1u + 5u * 2u + 10u * 2u);
  for (const char* tag :
       {"total_loss (raw)", "total_loss", "cross_entropy (raw)", "local3/weight_loss",
        "learning_rate", "conv1/activations", "conv1/sparsity", "softmax_linear/sparsity",
        "conv2/weights", "conv2/weights/gradients"}) {
    EXPECT_EQ(one.count(tag), 1u) << tag;
  }
  for (const std::string& tag : one) EXPECT_EQ(tag.find("tower"), std::string::npos) << tag;
}

TEST(TowerTrainer, CheckpointCanBeRestoredWithAnyNumberOfTowers) {
  const std::string path = ::testing::TempDir() + "tutti_cifar10.safetensors";
  const auto saved = trainer_on("cpu:0-1", 2);
  train(*saved, 2);
  saved->checkpoint().save(path, 2);
  const auto restored = trainer_on("cpu:0", 4);
  EXPECT_EQ(restored->checkpoint().restore(path).step, 2);
  EXPECT_EQ(restored->global_step().value().item_int(), 2);
  for (const bool averages : {false, true}) {
    const auto values = [&](TowerTrainer& trainer) {
      return all_values(averages ? trainer.variable_averages().averages()
                                 : trainer.variables().variables());
    };
    EXPECT_EQ(values(*restored), values(*saved));
  }
  EXPECT_EQ(all_values(restored->loss_averages().averages()),
            all_values(saved->loss_averages().averages()));
}

TEST(Evaluator, UsesAveragedWeightsAndCountsEachImageOnce) {
  const std::string path = ::testing::TempDir() + "tutti_cifar10_eval.safetensors";
  // The network always predicts class 3 with the averaged weights, and class 5 with the unaveraged
  // weights.
  const auto trainer = trainer_on("cpu:0", 1);
  const auto biased = [](Variable biases, std::size_t answer) {
    std::vector<float> values(10, 0.0f);
    values[answer] = 100.0f;
    biases.assign(Tensor::from<float>({10}, values));
  };
  biased(trainer->variables().variables()[9], 5);
  biased(trainer->variable_averages().average("softmax_linear/biases"), 3);
  trainer->checkpoint().save(path, 7);

  std::vector<std::uint8_t> labels;
  for (std::uint8_t i = 0; i < 35; ++i) labels.push_back(i % 10);
  const ImageData images{Tensor::full({35, 32, 32, 3}, 7.0, DType::kUInt8),
                         Tensor::from<std::uint8_t>({35}, labels)};
  Evaluator evaluator(parse_devices("cpu:0-1"));
  EXPECT_EQ(evaluator.restore(path), 7);
  const auto all = evaluator.evaluate(images, 10'000, 8);  // 4 batches of 8, then 3
  EXPECT_EQ(all.total, 35);
  EXPECT_EQ(all.correct, 4);  // images 3, 13, 23 and 33
  const auto some = evaluator.evaluate(images, 20, 8);
  EXPECT_EQ(some.total, 20);
  EXPECT_EQ(some.correct, 2);
  EXPECT_DOUBLE_EQ(some.at_1(), 0.1);
}

}  // namespace tutti::cifar10_trainer_test
