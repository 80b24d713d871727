// Tests layers that augment images at random: values, keys, gradients and errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/preprocessing.h"

#include <algorithm>
#include <set>

#include "tests/layers/layer_checks.h"
#include "tutti/core/random.h"

namespace tutti::image_augmentation_test {

using namespace layer_tests;

Tensor in_training(const Layer& layer, const Tensor& x, std::uint64_t step = 1,
                   std::uint32_t replica = 0) {
  const RandomContextScope scope({.seed = 3, .step = step, .replica = replica});
  return layer(x, {.training = true});
}

TEST(ImageAugmentation, HasTheGradientsOfDifferencesInTraining) {
  const layer_tests::ExactLayers exact;
  RandomFlip exact_flip;
  RandomContrast exact_contrast(0.5, {.value_range = {-9.0, 9.0}});
  RandomBrightness exact_brightness(0.5, {.value_range = {-9.0, 9.0}});
  for (Layer* layer :
       std::initializer_list<Layer*>{&exact_flip, &exact_contrast, &exact_brightness}) {
    layer->build_for({3, 4, 2});
    // All calls use the same random numbers, so differences are those of one function.
    layer_tests::expect_gradient_of_differences(
        [&](const Tensor& x) {
          const Tensor y = in_training(*layer, x);
          return reduce_sum(y * layer_tests::spread(y.shape(), 5)) + reduce_sum(square(y));
        },
        layer_tests::spread({2, 3, 4, 2}, 9), 2e-6);
  }
}

TEST(ImageAugmentation, OutsideTrainingNothingChanges) {
  set_random_seed(4);
  const Tensor x = counting({8, 3, 2, 1});
  RandomFlip flip;
  RandomBrightness brightness(1.0);
  RandomContrast contrast(1.0);
  for (Layer* layer : std::initializer_list<Layer*>{&flip, &brightness, &contrast}) {
    layer->build_for({3, 2, 1});
    EXPECT_EQ((*layer)(x).to_doubles(), x.to_doubles());
    EXPECT_NE(in_training(*layer, x).to_doubles(), x.to_doubles());
  }
}

TEST(ImageAugmentation, ComputesInFloat32UnderMixedPolicies) {
  const Tensor x = layer_tests::spread({6, 3, 4, 2}, 9) * 100.0 + 120.0;
  const auto results = [&](const char* policy) {
    set_random_seed(4);
    set_dtype_policy(policy);
    RandomFlip flip;
    RandomContrast contrast(0.5);
    RandomBrightness brightness(0.2);
    set_dtype_policy("float32");
    std::vector<Tensor> tensors;
    for (Layer* layer : std::initializer_list<Layer*>{&flip, &contrast, &brightness}) {
      layer->build_for({3, 4, 2});
      tensors.push_back(in_training(*layer, x));
    }
    return tensors;
  };
  const auto exact = results("float32"), half = results("mixed_float16");
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(half[i].dtype(), DType::kFloat16);
    expect_values(half[i], exact[i].to_doubles(), 0.3);  // values up to 255, with 11 bits
  }
}

TEST(RandomFlipLayer, MirrorsHalfOfThePicturesEachWay) {
  std::vector<float> pixels;
  for (int i = 0; i < 4000; ++i) pixels.insert(pixels.end(), {0.f, 1.f, 2.f, 3.f});
  const Tensor x = Tensor::from({4000, 2, 2, 1}, pixels);
  const auto corners = [&](const char* mode) {
    RandomFlip flip({.mode = mode});
    flip.build_for({2, 2, 1});
    const std::vector<double> y = in_training(flip, x).to_doubles();
    std::vector<int> counts(4, 0);
    for (std::size_t i = 0; i < y.size(); i += 4) {
      ++counts[static_cast<std::size_t>(y[i])];
      EXPECT_EQ(y[i] + y[i + 3], 3.0);
      EXPECT_EQ(y[i + 1] + y[i + 2], 3.0);
    }
    return counts;
  };
  const double half = 5 * std::sqrt(1000.0), quarter = 5 * std::sqrt(750.0);
  for (const int count : corners("horizontal_and_vertical")) EXPECT_NEAR(count, 1000, quarter);
  const auto horizontal = corners("horizontal"), vertical = corners("vertical");
  EXPECT_NEAR(horizontal[1], 2000, half);
  EXPECT_EQ(horizontal[0] + horizontal[1], 4000);
  EXPECT_NEAR(vertical[2], 2000, half);
  EXPECT_EQ(vertical[0] + vertical[2], 4000);
}

TEST(ImageAugmentation, IsKeyedByStepAndReplica) {
  RandomBrightness layer(0.5);
  layer.build_for({1, 1, 1});
  const Tensor x = Tensor::full({6, 1, 1, 1}, 128.0);
  const auto first = in_training(layer, x).to_doubles();
  EXPECT_EQ(std::set<double>(first.begin(), first.end()).size(), 6u);  // each image has its own
  EXPECT_EQ(in_training(layer, x).to_doubles(), first);
  EXPECT_NE(in_training(layer, x, 2).to_doubles(), first);
  EXPECT_NE(in_training(layer, x, 1, 1).to_doubles(), first);
}

TEST(RandomBrightnessLayer, AddsOneNumberPerPictureWithinTheRange) {
  RandomBrightness layer(0.2, {.value_range = {0.0, 1.0}});
  layer.build_for({1, 2, 1});
  std::vector<float> pixels;
  for (int i = 0; i < 1000; ++i) pixels.insert(pixels.end(), {0.5f, 0.9f});
  const auto y = in_training(layer, Tensor::from({1000, 1, 2, 1}, pixels)).to_doubles();
  double lowest = 1, highest = 0;
  for (std::size_t i = 0; i < y.size(); i += 2) {
    lowest = std::min(lowest, y[i]);
    highest = std::max(highest, y[i]);
    EXPECT_NEAR(y[i + 1], std::min(y[i] + 0.4, 1.0), 1e-6);
  }
  EXPECT_NEAR(lowest, 0.3, 0.01);
  EXPECT_NEAR(highest, 0.7, 0.01);
}

TEST(RandomContrastLayer, ScalesDistancesFromTheChannelsMean) {
  RandomContrast layer(0.5);
  layer.build_for({1, 2, 2});
  std::vector<float> pixels;  // means 100 and 52, distances 20 and 2
  for (int i = 0; i < 1000; ++i) pixels.insert(pixels.end(), {80.f, 50.f, 120.f, 54.f});
  const auto y = in_training(layer, Tensor::from({1000, 1, 2, 2}, pixels)).to_doubles();
  double lowest = 9, highest = 0;
  for (std::size_t i = 0; i < y.size(); i += 4) {
    const double factor = (y[i + 2] - 100) / 20;
    lowest = std::min(lowest, factor);
    highest = std::max(highest, factor);
    EXPECT_NEAR(y[i], 100 - 20 * factor, 1e-3);
    EXPECT_NEAR(y[i + 1], 52 - 2 * factor, 1e-3);
    EXPECT_NEAR(y[i + 3], 52 + 2 * factor, 1e-3);
  }
  EXPECT_NEAR(lowest, 0.5, 0.01);
  EXPECT_NEAR(highest, 1.5, 0.01);
}

TEST(CenterCropLayer, TakesTheMiddleAlsoOfBytes) {
  CenterCrop crop({1, 2});
  crop.build_for({3, 4, 1});
  expect_values(crop(counting({1, 3, 4, 1})), {5, 6});
  RandomFlip flip;
  flip.build_for({2, 2, 1});
  const Tensor bytes = Tensor::full({1, 2, 2, 1}, 200, DType::kUInt8);
  EXPECT_EQ(in_training(flip, bytes).dtype(), DType::kFloat32);
  expect_values(in_training(flip, bytes), {200, 200, 200, 200});
}

TEST(ImageAugmentation, MistakesAreNamed) {
  EXPECT_INVALID(RandomFlip bad({.mode = "sideways"}), "got 'sideways'");
  EXPECT_INVALID(RandomBrightness bad(1.5), "a factor in [0, 1]");
  EXPECT_INVALID(RandomContrast bad(-0.5), "a factor in [0, 1]");
  EXPECT_INVALID(RandomContrast bad(0.5, {.value_range = {1.0, 0.0}}), "value_range");
  EXPECT_INVALID(CenterCrop({5, 5}).build_for({4, 6, 3}), "at least 5 x 5 pixels, got 4 x 6");
  EXPECT_INVALID(RandomFlip().build_for({784}), "[height, width");
}

}  // namespace tutti::image_augmentation_test
