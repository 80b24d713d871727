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
using ::testing::HasSubstr;

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

TEST(LayerNormalizationTest, NormalizesEachExampleOverItsAxes) {
  const Tensor x = spread({3, 4, 5}, 1);
  LayerNormalization last, both({.axes = {1, 2}, .epsilon = 0.1}),
      first({.axes = {1}, .center = false});
  last.build_for({4, 5});
  both.build_for({4, 5});
  first.build_for({4, 5});
  EXPECT_THAT(weights_of_layer(last),
              ElementsAre("layer_normalization/gamma [5]", "layer_normalization/beta [5]"));
  EXPECT_THAT(weights_of_layer(both),
              ElementsAre("layer_normalization/gamma [4, 5]", "layer_normalization/beta [4, 5]"));
  EXPECT_THAT(weights_of_layer(first), ElementsAre("layer_normalization/gamma [4]"));
  const std::vector<double> values = x.to_doubles();
  expect_values(last(x),
                normalized_by(
                    values, [](std::size_t i) { return i / 5; }, 1e-3),
                1e-5);
  expect_values(both(x),
                normalized_by(
                    values, [](std::size_t i) { return i / 20; }, 0.1),
                1e-5);
  Variable gamma = first.variables()[0];
  gamma.assign(Tensor::from<float>({4}, {1, 2, 3, 4}));
  std::vector<double> expected = normalized_by(
      values, [](std::size_t i) { return i / 20 * 5 + i % 5; }, 1e-3);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] *= static_cast<double>(i / 5 % 4 + 1);
  expect_values(first(x), expected, 1e-5);
}

TEST(GroupNormalizationTest, NormalizesGroupsOfChannels) {
  const Tensor x = spread({2, 3, 2, 6}, 2);
  GroupNormalization three(3), each(-1), one(1);
  three.build_for({3, 2, 6});
  each.build_for({3, 2, 6});
  one.build_for({3, 2, 6});
  const std::vector<double> values = x.to_doubles();
  auto group = [](std::size_t groups) {
    return [groups](std::size_t i) { return i / 36 * groups + i % 6 / (6 / groups); };
  };
  expect_values(three(x), normalized_by(values, group(3), 1e-3), 1e-5);
  expect_values(each(x), normalized_by(values, group(6), 1e-3), 1e-5);
  expect_values(one(x), normalized_by(values, group(1), 1e-3), 1e-5);
  GroupNormalization misfit(4);
  EXPECT_THAT(error_of([&] {
                misfit.build_for({3, 2, 6});
              }),
              HasSubstr("layer 'group_normalization' (GroupNormalization): GroupNormalization: 6 "
                        "channels cannot be cut into 4 equal groups"));
}

TEST(UnitNormalizationTest, GivesVectorsOfLengthOne) {
  UnitNormalization unit;
  unit.build_for({2});
  expect_values(unit(Tensor::from<float>({2, 2}, {3, 4, 0, 0})), {0.6, 0.8, 0, 0});
  UnitNormalization columns({.axes = {1}});
  columns.build_for({2, 2});
  expect_values(columns(Tensor::from<float>({1, 2, 2}, {3, 1, 4, 0})), {0.6, 1, 0.8, 0});
  UnitNormalization beyond({.axes = {3}});
  EXPECT_THAT(error_of([&] {
                beyond.build_for({2, 2});
              }),
              HasSubstr("expected axes from 1 to 2 (the batch is 0)"));
}

TEST(MoreLayers, KeepPromisesAndGradients) {
  check_layer([] { return LayerNormalization(); }, {{3, 4}});
  check_layer([] { return LayerNormalization({.axes = {1, 2}}); }, {{3, 4}});
  check_layer([] { return LayerNormalization({.axes = {1}, .scale = false}); }, {{3, 4}});
  check_layer([] { return GroupNormalization(2); }, {{2, 3, 4}});
  check_layer([] { return UnitNormalization(); }, {{3, 4}});
  check_layer([] { return ZeroPadding2D({1, 0, 2, 1}); }, {{2, 3, 2}});
  check_layer([] { return Cropping2D({1, 0, 0, 1}); }, {{3, 3, 2}});
  check_layer([] { return ZeroPadding1D(2); }, {{3, 2}});
  check_layer([] { return UpSampling2D({2, 3}); }, {{2, 3, 2}});
  check_layer([] { return UpSampling2D({2, 3}, {.interpolation = "bilinear"}); }, {{2, 3, 2}});
  check_layer([] { return Permute({2, 3, 1}); }, {{2, 3, 4}});
  check_layer([] { return RepeatVector(3); }, {{4}});
  check_layer([] { return Conv1D(3, 2); }, {{5, 2}});
  check_layer([] { return Conv1D(3, 3, {.strides = 2, .padding = "same", .use_bias = false}); },
              {{5, 2}});
  check_layer([] { return Conv1D(2, 3, {.padding = "causal", .activation = "tanh"}); }, {{5, 2}});
  check_layer([] { return MaxPooling1D(); }, {{5, 2}});
  check_layer([] { return AveragePooling1D(3, {.strides = 1, .padding = "same"}); }, {{5, 2}});
  check_layer([] { return GlobalAveragePooling1D(); }, {{5, 2}});
  check_layer([] { return GlobalMaxPooling1D(); }, {{5, 2}});
  check_layer([] { return PReLU(); }, {{2, 3}});
  check_layer([] { return PReLU({.shared_axes = {1}}); }, {{2, 3}});
  check_layer([] { return TimeDistributed(Dense(3)); }, {{4, 2}});
  check_layer([] { return TimeDistributed(Conv2D(2, 2)); }, {{2, 3, 3, 1}});
  check_layer([] { return Lambda([](const Tensor& x) { return square(x) * 3.0; }); }, {{4, 2}});
  for (const double rate : {0.0, 0.5}) {
    GaussianNoise noise(rate);
    GaussianDropout gaussian(rate);
    SpatialDropout1D steps(rate);
    SpatialDropout2D images(rate);
    layer_tests::check_shapes(noise, {{3}});
    layer_tests::check_shapes(gaussian, {{3}});
    layer_tests::check_shapes(steps, {{4, 3}});
    layer_tests::check_shapes(images, {{2, 2, 3}});
  }
}

TEST(EveryOldLayer, HasTheGradientsOfDifferences) {
  check_layer([] { return Dense(3, {.activation = "sigmoid"}); }, {{4}});
  check_layer([] { return Dense(3, {.activation = "gelu", .use_bias = false}); }, {{2, 4}});
  check_layer([] { return Conv2D(2, {2, 1}, {.strides = 2, .padding = "same"}); }, {{3, 4, 2}});
  check_layer([] { return AveragePooling2D(2, {.strides = 1}); }, {{3, 4, 2}});
  check_layer([] { return MaxPooling2D(2, {.strides = 1}); }, {{3, 4, 2}});
  check_layer([] { return GlobalAveragePooling2D(); }, {{3, 4, 2}});
  check_layer([] { return GlobalMaxPooling2D(); }, {{3, 4, 2}});
  check_layer([] { return Softmax(); }, {{4}});
  const layer_tests::ExactLayers exact;
  BatchNormalization training, synchronized({.synchronized = true});
  layer_tests::check_gradients(training, {{3, 2}}, {.training = true});
  layer_tests::check_gradients(synchronized, {{3, 2}}, {.training = true});
}

TEST(ResizingTest, PadsCropsAndRepeats) {
  const Tensor x = counting({1, 2, 2, 1});
  ZeroPadding2D padding({1, 0, 0, 2});
  EXPECT_EQ(padding.build_for({2, 2, 1}), (Shape{3, 4, 1}));
  expect_values(padding(x), {0, 0, 0, 0, 0, 1, 0, 0, 2, 3, 0, 0});
  Cropping2D cropping({1, 0, 0, 1});
  cropping.build_for({2, 2, 1});
  expect_values(cropping(x), {2});
  UpSampling2D nearest({1, 2});
  nearest.build_for({2, 2, 1});
  expect_values(nearest(x), {0, 0, 1, 1, 2, 2, 3, 3});
  // Centres of the new pixels of [0, 1]: -0.25, 0.25, 0.75, 1.25 of the old ones.
  UpSampling2D bilinear({1, 2}, {.interpolation = "bilinear"});
  bilinear.build_for({2, 2, 1});
  expect_values(bilinear(x), {0, 0.25, 0.75, 1, 2, 2.25, 2.75, 3});
  Cropping2D all(1);
  EXPECT_THAT(error_of([&] {
                all.build_for({2, 2, 1});
              }),
              HasSubstr("layer 'cropping2d' (Cropping2D): Cropping2D: nothing is left"));
  EXPECT_THAT(error_of([] { UpSampling2D bad(2, {.interpolation = "cubic"}); }),
              HasSubstr("'nearest' or 'bilinear', got 'cubic'"));
  ZeroPadding2D flat;
  EXPECT_THAT(error_of([&] { flat.build_for({4}); }), HasSubstr("expected examples of shape"));
}

TEST(ReshapingTest, PermutesAndRepeats) {
  Permute permute({2, 1});
  permute.build_for({2, 3});
  expect_values(permute(counting({1, 2, 3})), {0, 3, 1, 4, 2, 5});
  RepeatVector repeat(2);
  repeat.build_for({2});
  expect_values(repeat(counting({2, 2})), {0, 1, 0, 1, 2, 3, 2, 3});
  EXPECT_THAT(error_of([] { Permute bad({1, 1}); }), HasSubstr("each axis from 1 to 2 once"));
  EXPECT_THAT(
      error_of([&] {
        Permute({2, 1}).build_for({2});
      }),
      HasSubstr("layer 'permute' (Permute): Permute: expected examples of rank 2, got [2]"));
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
  MaxPooling1D max_pool;
  AveragePooling1D average_pool(3, {.strides = 1});
  max_pool.build_for({4, 1});
  average_pool.build_for({4, 1});
  const Tensor x = Tensor::from<float>({1, 4, 1}, {1, 4, 2, 6});
  expect_values(max_pool(x), {4, 6});
  expect_values(average_pool(x), {7.0 / 3, 4});
  EXPECT_THAT(error_of([] { Conv1D(1, 2).build_for({4}); }),
              HasSubstr("layer 'conv1d' (Conv1D): Conv1D: expected examples of shape [steps, "
                        "channels], got [4]"));
}

TEST(PReLUTest, LearnsTheSlopeBelowZero) {
  PReLU layer({.alpha_initializer = initializers::values(Tensor::from<float>({2}, {0.5, 2}))});
  layer.build_for({2});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("p_re_lu/alpha [2]"));
  expect_values(layer(Tensor::from<float>({2, 2}, {-1, -1, 3, -2})), {-0.5, -2, 3, -4});
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
  EXPECT_THAT(error_of([] { GaussianDropout bad(1.0); }), HasSubstr("a rate in [0, 1), got 1"));
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

TEST(LambdaTest, FindsItsShape) {
  Lambda sum([](const Tensor& x) { return reduce_sum(x, {.axes = {2}}); });
  EXPECT_EQ(sum.build_for({2, 3}), (Shape{2}));
  expect_values(sum(counting({1, 2, 3})), {3, 12});
  Lambda scalar([](const Tensor& x) { return reduce_sum(x); });
  EXPECT_THAT(error_of([&] { scalar.build_for({2}); }),
              HasSubstr("layer 'lambda' (Lambda): Lambda: expected a result [batch, ...]"));
}

TEST(TimeDistributedTest, IsTheLayerOnEachStep) {
  TimeDistributed layer(Dense(2));
  layer.build_for({3, 4});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("time_distributed/dense/kernel [4, 2]",
                                                   "time_distributed/dense/bias [2]"));
  Dense dense(2, {.kernel_initializer = initializers::values(layer.variables()[0].value())});
  dense.build_for({4});
  const Tensor x = counting({2, 3, 4}, 0.1);
  const Tensor y = layer(x);
  for (std::int64_t step = 0; step < 3; ++step) {
    expect_values(reshape(slice(y, {0, step, 0}, {-1, 1, -1}), {2, 2}),
                  dense(reshape(slice(x, {0, step, 0}, {-1, 1, -1}), {2, 4})).to_doubles());
  }
}

}  // namespace
}  // namespace tutti
