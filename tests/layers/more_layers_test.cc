// Normalisations, resizing, noise and sequences: each against a slow computation.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <functional>
#include <map>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;

/// Normalises the elements of `x` that have the same key, with weights per element.
std::vector<double> normalized_by(const std::vector<double>& x,
                                  const std::function<std::size_t(std::size_t)>& key,
                                  double epsilon) {
  std::map<std::size_t, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < x.size(); ++i) groups[key(i)].push_back(i);
  std::vector<double> y(x.size());
  for (const auto& [number, members] : groups) {
    const double count = static_cast<double>(members.size());
    double mean = 0.0, variance = 0.0;
    for (const std::size_t i : members) mean += x[i] / count;
    for (const std::size_t i : members) variance += (x[i] - mean) * (x[i] - mean) / count;
    for (const std::size_t i : members) y[i] = (x[i] - mean) / std::sqrt(variance + epsilon);
  }
  return y;
}

TEST(LayerNormalizationTest, WeightsHaveTheShapeOfItsAxes) {
  LayerNormalization both({.axes = {1, 2}}), first({.axes = {1}, .center = false});
  both.build_for({4, 5});
  first.build_for({4, 5});
  EXPECT_THAT(weights_of_layer(both),
              ElementsAre("layer_normalization/gamma [4, 5]", "layer_normalization/beta [4, 5]"));
  EXPECT_THAT(weights_of_layer(first), ElementsAre("layer_normalization/gamma [4]"));
  Variable gamma = first.variables()[0];
  gamma.assign(Tensor::from<float>({4}, {1, 2, 3, 4}));
  const Tensor x = spread({3, 4, 5}, 1);
  std::vector<double> expected = normalized_by(
      x.to_doubles(), [](std::size_t i) { return i / 20 * 5 + i % 5; }, 1e-3);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] *= static_cast<double>(i / 5 % 4 + 1);
  expect_values(first(x), expected, 1e-5);
}

TEST(GroupNormalizationTest, NormalizesGroupsOfChannels) {
  const Tensor x = spread({2, 3, 2, 6}, 2);
  GroupNormalization three(3);
  three.build_for({3, 2, 6});
  const auto group = [](std::size_t i) { return i / 36 * 3 + i % 6 / 2; };
  expect_values(three(x), normalized_by(x.to_doubles(), group, 1e-3), 1e-5);
  GroupNormalization each(-1);
  each.build_for({3, 2, 6});
  const auto channel = [](std::size_t i) { return i / 36 * 6 + i % 6; };
  expect_values(each(x), normalized_by(x.to_doubles(), channel, 1e-3), 1e-5);
  GroupNormalization misfit(4);
  EXPECT_ERROR(misfit.build_for({3, 2, 6}), kInvalidArgument,
               "layer 'group_normalization' (GroupNormalization): GroupNormalization: 6 "
               "channels cannot be cut into 4 equal groups");
}

TEST(UnitNormalizationTest, GivesVectorsOfLengthOne) {
  UnitNormalization columns({.axes = {1}});
  columns.build_for({2, 2});
  expect_values(columns(Tensor::from<float>({1, 2, 2}, {3, 1, 4, 0})), {0.6, 1, 0.8, 0});
  UnitNormalization beyond({.axes = {3}});
  EXPECT_ERROR(beyond.build_for({2, 2}), kInvalidArgument,
               "expected axes from 1 to 2 (the batch is 0)");
}

TEST(ResizingTest, ErrorsNameTheArgument) {
  EXPECT_ERROR(Cropping2D(1).build_for({2, 2, 1}), kInvalidArgument,
               "layer 'cropping2d' (Cropping2D): Cropping2D: nothing is left");
  EXPECT_ERROR(UpSampling2D bad(2, {.interpolation = "cubic"}), kInvalidArgument,
               "'nearest' or 'bilinear', got 'cubic'");
  EXPECT_ERROR(ZeroPadding2D().build_for({4}), kInvalidArgument, "expected examples of shape");
  EXPECT_ERROR(Permute bad({1, 1}), kInvalidArgument, "each axis from 1 to 2 once");
  EXPECT_ERROR(Permute({2, 1}).build_for({2}), kInvalidArgument,
               "layer 'permute' (Permute): Permute: expected examples of rank 2, got [2]");
}

TEST(Conv1DTest, EqualsTheSumOverItsWindow) {
  const Tensor kernel = Tensor::from<float>({2, 1, 1}, {1, 10});
  auto values = [&](const char* padding) {
    Conv1D conv(1, 2, {.padding = padding, .kernel_initializer = initializers::values(kernel)});
    conv.build_for({4, 1});
    return conv(Tensor::from<float>({1, 4, 1}, {1, 2, 3, 4})).to_doubles();
  };
  EXPECT_THAT(values("valid"), ElementsAre(21, 32, 43));
  EXPECT_THAT(values("same"), ElementsAre(21, 32, 43, 4));
  EXPECT_THAT(values("causal"), ElementsAre(10, 21, 32, 43));
  Conv1D conv(3, 2);
  conv.build_for({4, 5});
  EXPECT_THAT(weights_of_layer(conv), ElementsAre("conv1d/kernel [2, 5, 3]", "conv1d/bias [3]"));
  EXPECT_ERROR(Conv1D(1, 2).build_for({4}), kInvalidArgument,
               "layer 'conv1d' (Conv1D): Conv1D: expected examples of shape [steps, "
               "channels], got [4]");
}

TEST(PReLUTest, HasASlopePerElementOrPerUnsharedAxis) {
  PReLU layer;
  layer.build_for({2});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("p_re_lu/alpha [2]"));
  PReLU shared({.shared_axes = {1, 2}});
  shared.build_for({4, 4, 3});
  EXPECT_EQ(shared.variables()[0].shape(), (Shape{1, 1, 3}));
}

TEST(NoiseTest, DisturbsInTrainingAlone) {
  const Tensor x = Tensor::ones({64, 5, 4, 8});
  auto moments = [&](Layer& layer) {
    layer.build_for({5, 4, 8});
    EXPECT_EQ(layer(x).to_doubles(), x.to_doubles());
    double mean = 0.0, squares = 0.0;
    const std::vector<double> y = layer(x, {.training = true}).to_doubles();
    for (const double value : y) {
      mean += value / static_cast<double>(y.size());
      squares += (value - 1) * (value - 1) / static_cast<double>(y.size());
    }
    return std::pair(mean, squares);
  };
  GaussianNoise noise(0.5);
  GaussianDropout gaussian(0.2);
  const auto [mean, variance] = moments(noise);
  EXPECT_NEAR(mean, 1.0, 0.03);
  EXPECT_NEAR(variance, 0.25, 0.02);
  const auto [other_mean, other_variance] = moments(gaussian);
  EXPECT_NEAR(other_mean, 1.0, 0.03);
  EXPECT_NEAR(other_variance, 0.25, 0.02);
  EXPECT_ERROR(GaussianDropout bad(1.0), kInvalidArgument, "a rate in [0, 1), got 1");
}

TEST(SpatialDropoutTest, DropsWholeChannels) {
  SpatialDropout2D layer(0.4);
  layer.build_for({3, 2, 8});
  const std::vector<double> y = layer(Tensor::ones({50, 3, 2, 8}), {.training = true}).to_doubles();
  int dropped = 0;
  for (std::size_t row = 0; row < 50; ++row) {
    for (std::size_t channel = 0; channel < 8; ++channel) {
      const double first = y[row * 48 + channel];
      dropped += first == 0.0 ? 1 : 0;
      EXPECT_NEAR(first, first == 0.0 ? 0.0 : 1 / 0.6, 1e-6);
      for (std::size_t place = 1; place < 6; ++place)
        EXPECT_EQ(y[row * 48 + place * 8 + channel], first);
    }
  }
  EXPECT_NEAR(dropped / 400.0, 0.4, 0.1);
}

TEST(TimeDistributedTest, HasKerasWeights) {
  TimeDistributed layer(Dense(2));
  layer.build_for({3, 4});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("time_distributed/dense/kernel [4, 2]",
                                                   "time_distributed/dense/bias [2]"));
}

TEST(LambdaTest, FindsItsShape) {
  const auto cube = [](const Tensor& x) { return square(x) * 3.0; };
  Lambda shaped(cube);
  check_shapes(shaped, {{4, 2}});
  {
    const ExactLayers exact;
    Lambda differentiated(cube);
    check_gradients(differentiated, {{4, 2}});
  }
  Lambda sum([](const Tensor& x) { return reduce_sum(x, {.axes = {2}}); });
  EXPECT_EQ(sum.build_for({2, 3}), (Shape{2}));
  expect_values(sum(counting({1, 2, 3})), {3, 12});
  Lambda scalar([](const Tensor& x) { return reduce_sum(x); });
  EXPECT_ERROR(scalar.build_for({2}), kInvalidArgument,
               "layer 'lambda' (Lambda): Lambda: expected a result [batch, ...]");
}

}  // namespace
}  // namespace tutti
