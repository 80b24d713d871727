// fit and evaluate with unequal shares of the batch: the results of the whole batch.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"

namespace tutti {
namespace {

using model_tests::expect_near;

/// Two epochs of three batches, the last of 44 rows, and an evaluation: losses, then weights.
std::vector<double> fitted_with_shares(Strategy& strategy) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(6, {.activation = "tanh", .kernel_regularizer = "l2"}),
                   Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.5},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  const Dataset data = model_tests::three_classes(300).batch(128);
  const History history = model.fit(data, {.epochs = 2, .verbose = Verbosity::kSilent});
  std::vector<double> values = history.at("loss");
  const Logs logs = model.evaluate(data, {.verbose = Verbosity::kSilent});
  values.push_back(logs.at("loss"));
  values.push_back(logs.at("accuracy"));
  for (const double weight : model_tests::weights_of(model)) values.push_back(weight);
  return values;
}

TEST(UnequalSharesInFit, MatchesTheUnsplitBatch) {
  OneDeviceStrategy one("cpu:0");
  const std::vector<double> expected = fitted_with_shares(one);
  for (const std::vector<double>& weights :
       {std::vector<double>{3, 1}, std::vector<double>{1, 9}}) {
    MirroredStrategy mirrored({.devices = "cpu:0-1", .replica_weights = weights});
    expect_near(fitted_with_shares(mirrored), expected, 2e-5);
    CentralStorageStrategy central({{.devices = "cpu:0-1", .replica_weights = weights}, {}});
    expect_near(fitted_with_shares(central), expected, 2e-5);
  }
}

}  // namespace
}  // namespace tutti
