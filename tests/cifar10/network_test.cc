// Tests the CIFAR-10 tutorial's network against its published numbers, and against double
// precision.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/cifar10_network.h"

#include <gtest/gtest.h>

#include <cmath>

#include "examples/cifar10/cifar10_input.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

using namespace examples::cifar10;

namespace network_test {

Tensor standardised_images(std::int64_t count, std::uint64_t seed) {
  return random_normal({count, 24, 24, 3}, RandomKey{.seed = seed, .purpose = kUserPurpose});
}

Tensor labels_of(std::int64_t count) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(i % kNumClasses);
  return Tensor::from<std::int64_t>({count}, labels);
}

/// Computes the published network independently in float64.
Tensor expected_logits(const std::vector<Variable>& variables, const Tensor& images) {
  const auto value = [&](std::size_t i) { return cast(variables[i].value(), DType::kFloat64); };
  const auto conv = [&](const Tensor& x, std::size_t i) {
    return relu(conv2d(x, value(i), {.padding = Padding::kSame}) + value(i + 1));
  };
  const auto pool = [](const Tensor& x) {
    return max_pool2d(
        x, {.window_h = 3, .window_w = 3, .stride_h = 2, .stride_w = 2, .padding = Padding::kSame});
  };
  // Covers nine channels; alpha 0.001 / 9 is not divided by the number of channels again.
  const auto norm = [](const Tensor& x) {
    return local_response_normalization(
        x, {.depth_radius = 4, .bias = 1.0, .alpha = 0.001 / 9, .beta = 0.75});
  };
  const auto product = [&](const Tensor& x, std::size_t i) {
    return matmul(x, value(i)) + value(i + 1);
  };
  Tensor x = norm(pool(conv(cast(images, DType::kFloat64), 0)));
  x = flatten_rows(pool(norm(conv(x, 2))));
  return product(relu(product(relu(product(x, 4)), 6)), 8);
}

}  // namespace network_test

TEST(Cifar10Network, HasThePublishedNumberOfParameters) {
  VariableStore store;
  const Cifar10Network network(store);
  std::int64_t count = 0;
  std::vector<std::string> names;
  for (const Variable& variable : store.trainable_variables()) {
    count += variable.shape().num_elements();
    names.push_back(variable.name());
  }
  EXPECT_EQ(count, 1'068'298);
  EXPECT_EQ(names, (std::vector<std::string>{"conv1/weights", "conv1/biases", "conv2/weights",
                                             "conv2/biases", "local3/weights", "local3/biases",
                                             "local4/weights", "local4/biases",
                                             "softmax_linear/weights", "softmax_linear/biases"}));
}

TEST(Cifar10Network, WeightsBeginAsTruncatedNormalsOfTheTutorialsDeviations) {
  set_random_seed(2);
  VariableStore store;
  const Cifar10Network network(store);
  const double stddevs[] = {0.05, 0.05, 0.04, 0.04, 1.0 / 192.0};
  const double biases[] = {0.0, 0.1, 0.1, 0.1, 0.0};
  for (std::size_t layer = 0; layer < 5; ++layer) {
    const std::vector<double> w = store.variables()[2 * layer].value().to_doubles();
    double squares = 0.0, largest = 0.0;
    for (const double value : w) {
      squares += value * value;
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_LE(largest, 2.0 * stddevs[layer] * (1.0 + 1e-6));
    // Truncated at two deviations, the variance is 0.77374 of the normal's.
    const double variance = squares / static_cast<double>(w.size());
    EXPECT_NEAR(variance / (0.77374 * stddevs[layer] * stddevs[layer]), 1.0,
                6.0 / std::sqrt(static_cast<double>(w.size())));
    for (const double bias : store.variables()[2 * layer + 1].value().to_doubles()) {
      EXPECT_EQ(bias, static_cast<double>(static_cast<float>(biases[layer])));
    }
  }
}

// ln 10 + 0.004 / 2 * 0.77374 * 0.04^2 * (2304 * 384 + 384 * 192) = 4.676; the tutorial's log says
// 4.68.
TEST(Cifar10Network, LossOfStep0MatchesPublishedValue) {
  using namespace network_test;
  double mean = 0.0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    set_random_seed(seed);
    VariableStore store;
    const Cifar10Network network(store);
    Tower tower("tower_0");
    const Tensor logits = network.inference(tower, standardised_images(16, seed + 20));
    const double loss = Cifar10Network::loss(tower, logits, labels_of(16)).item();
    EXPECT_NEAR(loss, 4.676, 0.03) << "seed " << seed;
    mean += loss / 5.0;
  }
  EXPECT_NEAR(mean, 4.676, 0.02);
}

TEST(Cifar10Network, LogitsMatchDirectComputation) {
  using namespace network_test;
  set_random_seed(1);
  VariableStore store;
  const Cifar10Network network(store);
  // Weights are larger than initial ones, so that LRN and both signs of sums matter.
  Variable(store.variables()[8]).assign(store.variables()[8].value() * 40.0f);
  const Tensor images = standardised_images(2, 7) * 3.0f;
  Tower tower("tower_0");
  const Tensor logits = network.inference(tower, images);
  EXPECT_EQ(logits.shape(), (Shape{2, 10}));
  testing::expect_tensor(logits, {2, 10}, expected_logits(store.variables(), images).to_doubles(),
                         1e-4);
  // float16 agrees to its three digits.
  Tower half("tower_0");
  const Tensor rounded = network.inference(half, images, /*use_fp16=*/true);
  EXPECT_EQ(rounded.dtype(), DType::kFloat32);
  testing::expect_tensor(rounded, {2, 10}, logits.to_doubles(), 2e-2);
}

TEST(Cifar10Network, WeightDecayAddsRateTimesWeightToGradient) {
  const Variable w(Tensor::from<float>({3}, {1.0f, -2.0f, 0.5f}), {.name = "w"});
  GradientTape tape;
  const Tensor loss = weight_decay_loss(w.value(), 0.004);
  EXPECT_FLOAT_EQ(loss.item(), 0.002f * 5.25f);
  testing::expect_tensor(tape.gradient(loss, w).dense(), {3}, {0.004, -0.008, 0.002}, 1e-7);
}

TEST(Cifar10Network, TowerLossIsCrossEntropyPlusDecayTerms) {
  using namespace network_test;
  set_random_seed(3);
  VariableStore store;
  const Cifar10Network first(store);
  store.reuse_variables();
  const Cifar10Network second(store);
  const Cifar10Network* networks[] = {&first, &second};
  double weights3 = 0.0, weights4 = 0.0;
  for (const double w : store.variables()[4].value().to_doubles()) weights3 += w * w;
  for (const double w : store.variables()[6].value().to_doubles()) weights4 += w * w;
  for (int t = 0; t < 2; ++t) {
    const std::string prefix = concat("tower_", t, "/");
    Tower tower(concat("tower_", t));
    const Tensor logits = networks[t]->inference(tower, standardised_images(4, 9));
    const double total = Cifar10Network::loss(tower, logits, labels_of(4)).item();
    std::vector<std::string> names;
    double sum = 0.0;
    for (const NamedTensor& loss : tower.losses()) {
      names.push_back(loss.name);
      sum += loss.value.item();
    }
    EXPECT_EQ(names, (std::vector<std::string>{
                         prefix + "conv1/weight_loss", prefix + "conv2/weight_loss",
                         prefix + "local3/weight_loss", prefix + "local4/weight_loss",
                         prefix + "softmax_linear/weight_loss", prefix + "cross_entropy"}));
    EXPECT_EQ(tower.losses()[0].value.item(), 0.0f);  // a separate term of value 0
    EXPECT_NEAR(tower.losses()[2].value.item(), 0.002 * weights3, 1e-4);
    EXPECT_NEAR(tower.losses()[3].value.item(), 0.002 * weights4, 1e-5);
    EXPECT_NEAR(total, sum, 1e-5);
    EXPECT_NEAR(total, 4.676, 0.05);  // not 2 * 2.37 more
  }
}

}  // namespace
}  // namespace tutti
