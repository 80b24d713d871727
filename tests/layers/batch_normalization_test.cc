// Batch normalisation: statistics, moving averages in closed form, synchronised form, no rows.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/layers/layer_helpers.h"
#include "tutti/model/layers/normalizations.h"

namespace tutti {
namespace {

using namespace layer_tests;

// Column means 2 and 40, biased variances 1 and 400.
Tensor two_columns() { return Tensor::from<float>({2, 2}, {1, 20, 3, 60}); }

TEST(BatchNormalizationTest, HasKerasNamesAndOrder) {
  BatchNormalization layer;
  layer.build_for({2});
  std::vector<std::string> names;
  for (const Variable& variable : layer.variables()) names.push_back(variable.name());
  EXPECT_THAT(names, ::testing::ElementsAre("batch_normalization/gamma", "batch_normalization/beta",
                                            "batch_normalization/moving_mean",
                                            "batch_normalization/moving_variance"));
  EXPECT_EQ(layer.trainable_variables().size(), 2u);
  EXPECT_EQ(layer.num_parameters(), 8);
  BatchNormalization plain({.center = false, .scale = false});
  plain.build_for({2});
  EXPECT_EQ(plain.num_parameters(), 4);
  expect_values(plain(two_columns()), {1, 20, 3, 60}, 0.05);
}

TEST(BatchNormalizationTest, ABatchWithoutRowsChangesNothing) {
  for (const bool synchronized : {false, true}) {
    BatchNormalization layer({.synchronized = synchronized});
    layer.build_for({4, 2});
    EXPECT_EQ(layer(Tensor::zeros({0, 4, 2}), {.training = true}).shape(), (Shape{0, 4, 2}));
    expect_values(layer.variables()[2], {0, 0}, 0.0);
    expect_values(layer.variables()[3], {1, 1}, 0.0);
  }
}

TEST(BatchNormalizationTest, AFrozenLayerRunsAsInInference) {
  BatchNormalization layer;
  layer.build_for({2});
  layer.freeze();
  EXPECT_EQ(layer(two_columns(), {.training = true}).to_doubles(),
            layer(two_columns()).to_doubles());
  expect_values(layer.variables()[2], {0, 0}, 0.0);
}

TEST(BatchNormalizationTest, SynchronizedUsesOneAllReduceAndTheGlobalStatistics) {
  BatchNormalization layer({.momentum = 0.0, .synchronized = true});
  layer.build_for({2});
  EqualReplicas group(3);
  ReplicaGroupScope scope(&group);
  const Tensor y = layer(two_columns(), {.training = true});
  EXPECT_EQ(group.num_all_reduces, 1);
  // Three equal parts have the statistics of one.
  expect_values(layer.variables()[2], {2, 40}, 1e-5);
  expect_values(layer.variables()[3], {1, 400}, 1e-3);
  const double a = 1 / std::sqrt(1 + 1e-3), b = 20 / std::sqrt(400 + 1e-3);
  expect_values(y, {-a, -b, a, b}, 1e-5);
}

TEST(BatchNormalizationTest, SynchronizedGradientOfOneReplicaEqualsThePlainOne) {
  const Tensor x = Tensor::from<float>({4, 2}, {1, 5, 2, -3, 0.5, 2, -1, 0});
  std::vector<std::vector<double>> gradients;
  for (const bool synchronized : {false, true}) {
    BatchNormalization layer({.synchronized = synchronized});
    layer.build_for({2});
    GradientTape tape;
    tape.watch(x);
    const Tensor y = layer(x, {.training = true});
    const Tensor loss = reduce_sum(y * y * y);
    gradients.push_back(tape.gradient(loss, x).to_dense().to_doubles());
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_NEAR(gradients[0][i], gradients[1][i], 1e-4);
}

}  // namespace
}  // namespace tutti
