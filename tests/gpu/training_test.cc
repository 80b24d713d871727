// Tests training on a GPU by fit and by a custom loop against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_helpers.h"
#include "tutti/model/callbacks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::kGpu;
using gpu_tests::numbers;

constexpr std::int64_t kRows = 48;

/// Returns classes 0, 1, 2 of shape [48] that depend on the features [48, 6, 6, 2].
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

}  // namespace
}  // namespace tutti
