// Towers of other models than the tutorial's: average_gradients() knows none.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tensor_matchers.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {
namespace any_model_test {
constexpr int kSteps = 10;
constexpr std::int64_t kRows = 12;

struct Case {
  const char* name;
  Shape example;
  std::function<Sequential()> make;
};

std::vector<Case> cases() {
  return {{"a line", {3}, [] { return Sequential(Input{{3}}, Dense(2)); }},
          {"two dense layers",
           {5},
           [] { return Sequential(Input{{5}}, Dense(16, {.activation = "tanh"}), Dense(2)); }},
          {"a convolution", {6, 6, 2}, [] {
             return Sequential(Input{{6, 6, 2}}, Conv2D(4, 3, {.activation = "relu"}),
                               LocalResponseNormalization(), MaxPooling2D(), Flatten(), Dense(2));
           }}};
}

/// The weights after some steps of towers on `devices`, each with its share of the same rows.
std::vector<double> weights_after(const Case& each, const char* devices) {
  set_random_seed(8);
  CentralStorageStrategy strategy({.local = {.devices = devices}});
  const auto scope = strategy.scope();
  Sequential model = each.make();
  const std::vector<Variable> variables = model.trainable_variables();
  Sgd optimizer(variables, {.learning_rate = 0.1});
  std::vector<std::int64_t> dims = {kSteps * kRows};
  for (int axis = 0; axis < each.example.rank(); ++axis) dims.push_back(each.example[axis]);
  const Tensor x = reshape(random_normal({kSteps * kRows * each.example.num_elements()},
                                         {.seed = 1, .purpose = kUserPurpose}),
                           dims);
  const Tensor y = random_normal({kSteps * kRows, 2}, {.seed = 2, .purpose = kUserPurpose});

  const auto compute_gradients = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor loss =
        reduce_mean(losses::mean_squared_error(batch.labels(), model(batch.features())));
    return with_variables(tape.gradient(loss, variables), variables);
  };
  for (const PerReplica<Batch>& batch :
       strategy.distribute_dataset(Dataset::from_tensor_slices({x, y}).batch(kRows))) {
    const auto towers = strategy.run(compute_gradients, batch);
    const std::vector<Gradient> mean = gradients_of(average_gradients(towers.values()));
    strategy.run(
        [&] { optimizer.apply_gradients(mean, {.aggregation = GradientAggregation::kNone}); });
  }
  EXPECT_EQ(optimizer.iterations().value().item_int(), kSteps);
  std::vector<double> all;
  for (const Variable& variable : variables) {
    const std::vector<double> own = variable.value().to_doubles();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace any_model_test

TEST(AverageGradientsOfAnyModel, ThreeModelsTrainAlikeWithAndWithoutTowers) {
  using namespace any_model_test;
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const std::vector<double> one = weights_after(each, "cpu:0");
    for (const char* devices : {"cpu:0-1", "cpu:0-2"}) {
      const std::vector<double> towers = weights_after(each, devices);
      testing::expect_near(towers, one, 1e-5);
    }
  }
}

}  // namespace
}  // namespace tutti
