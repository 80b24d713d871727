// Tests augmentation: random numbers keyed by seed, epoch and element; random steps; mixup and
// cutmix.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "tests/data/dataset_values.h"
#include "tutti/data/augment.h"

namespace tutti::testing::augment_test {

using Numbers = std::vector<std::int64_t>;

/// Returns an element that holds a number drawn from the random stream of the given element.
Element random_number(const Element&, const SampleRandom& random) {
  return Element({number(static_cast<std::int64_t>(random.stream(2).bits(5)))});
}

std::int64_t promised_number(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample) {
  return static_cast<std::int64_t>(
      RandomStream(
          RandomKey{.seed = seed, .purpose = kAugmentPurpose, .a = epoch, .b = sample, .c = 2})
          .bits(5));
}

// The numbers must not change between versions: a resumed run must see the same data.
TEST(Augment, RandomNumbersAreKeyedBySeedEpochAndPosition) {
  const Dataset dataset = augment(Dataset::range(5).shuffle(5, 1), random_number, {.seed = 42});
  for (std::uint64_t epoch : {0, 1, 7}) {
    Numbers expected;
    for (std::uint64_t sample = 0; sample < 5; ++sample) {
      expected.push_back(promised_number(42, epoch, sample));
    }
    EXPECT_EQ(scalars_of(dataset, epoch), expected);
  }
}

TEST(Augment, RandomNumbersAreIndependentOfThreadsPrefetchAndBatching) {
  const Dataset base = Dataset::range(40);
  const Numbers straight = scalars_of(augment(base, random_number, {.seed = 1}), 3);
  EXPECT_EQ(std::set<std::int64_t>(straight.begin(), straight.end()).size(), 40u);
  for (const int calls : {1, 2, 4}) {
    const AugmentOptions options{.seed = 1, .num_parallel_calls = calls};
    EXPECT_EQ(scalars_of(augment(base, random_number, options), 3), straight);
    EXPECT_EQ(scalars_of(augment(base, random_number, options).prefetch(3), 3), straight);
    EXPECT_EQ(scalars_of(augment(base.batch(1).unbatch(), random_number, options), 3), straight);
    EXPECT_EQ(scalars_of(augment(base, random_number, options).batch(8).unbatch(), 3), straight);
  }
  EXPECT_NE(scalars_of(augment(base, random_number, {.seed = 2}), 3), straight);
}

TEST(Augment, SkippingPreservesRandomNumbersOfLaterElements) {
  const Numbers straight = scalars_of(augment(Dataset::range(30), random_number));
  for (const int calls : {1, 3}) {
    const Dataset dataset =
        augment(Dataset::range(30), random_number, {.num_parallel_calls = calls});
    auto elements = dataset.iterate(0);
    Numbers seen;
    // Skips elements before the first read, then elements that were read ahead, then later ones.
    for (const std::int64_t skipped : {3, 1, 0, 12}) {
      elements->skip(skipped);
      seen.push_back(elements->next()->operator[](0).item_int());
    }
    EXPECT_THAT(seen, ElementsAre(straight[3], straight[5], straight[6], straight[19]));
  }
}

TEST(Augment, FailedElementsAdvancePositionForAnyThreadCount) {
  const auto broken = [](const Element& element) -> Element {
    if (number_in(element) == 2) fail(ErrorCode::kDataLoss, "broken");
    return element;
  };
  for (const int calls : {1, 3}) {
    auto elements = augment(Dataset::range(5).map(broken), random_number,
                            {.seed = 9, .num_parallel_calls = calls})
                        .iterate(0);
    elements->next();
    elements->next();
    EXPECT_ERROR(elements->next(), kDataLoss, "broken");
    EXPECT_EQ((*elements->next())[0].item_int(), promised_number(9, 0, 3));
  }
}

TEST(Augment, RepeatedPassesUseDifferentRandomNumbers) {
  const Dataset once = augment(Dataset::range(4), random_number, {.seed = 5});
  const Numbers all = scalars_of(once.repeat(3));
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 12u);
  EXPECT_EQ(Numbers(all.begin() + 4, all.begin() + 8), scalars_of(once, 1));
  // augment() after repeat() numbers the elements of all passes consecutively.
  const Numbers above = scalars_of(augment(Dataset::range(4).repeat(2), random_number));
  EXPECT_EQ(std::set<std::int64_t>(above.begin(), above.end()).size(), 8u);
}

TEST(Augment, ReportsCardinality) {
  const Dataset dataset = augment(Dataset::range(7).batch(3), random_number);
  EXPECT_EQ(dataset.cardinality(), 3);
  EXPECT_EQ(dataset.batch_size(), std::nullopt);
  EXPECT_TRUE(dataset.source().may_end_in_partial_batch());
  EXPECT_EQ(augment(Dataset::range(7).repeat(), random_number).cardinality(), kInfinite);
}

TEST(Augment, RefusesInvalidArguments) {
  EXPECT_INVALID(augment(Dataset::range(1), nullptr), "augment", "expected a function");
  EXPECT_INVALID(augment(Dataset::range(1), random_number, {.num_parallel_calls = 0}),
                 "num_parallel_calls", ">= 1", "got 0");
  EXPECT_INVALID(augment_images(Dataset::range(1), {}), "augment_images", "at least one step");
  EXPECT_INVALID(augment_images(Dataset::range(1), {image::random_flip_up_down(), nullptr}),
                 "augment_images", "step 1 is empty; expected a function");
}

/// Returns one-channel images whose pixel (y, x) is 10 y + x, with labels 0, 1, ...
Dataset coordinates(std::int64_t count, std::int64_t height, std::int64_t width) {
  std::vector<std::uint8_t> values;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t y = 0; y < height; ++y)
      for (std::int64_t x = 0; x < width; ++x)
        values.push_back(static_cast<std::uint8_t>(10 * y + x));
  std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i);
  return Dataset::from_tensor_slices(
      {Tensor::from({count, height, width, 1}, values), Tensor::from({count}, labels)});
}

/// Expects each of `counts` to equal `total` * `probability` within 5 standard deviations.
void expect_binomial(const std::map<std::int64_t, int>& counts, int total, double probability) {
  for (const auto& [value, count] : counts) {
    EXPECT_NEAR(count, total * probability,
                5.0 * std::sqrt(total * probability * (1.0 - probability)))
        << "value " << value;
  }
}

TEST(AugmentImages, CropPositionsAreUniformlyDistributed) {
  std::map<std::int64_t, int> first;
  const Dataset dataset =
      augment_images(coordinates(6000, 5, 4), {image::random_crop(3, 2)}, {.seed = 3});
  for (const Element& element : dataset) {
    const Numbers pixels = numbers_of(element[0]);
    const auto corner = pixels[0];
    EXPECT_THAT(pixels, ElementsAre(corner, corner + 1, corner + 10, corner + 11, corner + 20,
                                    corner + 21));
    ++first[corner];
  }
  EXPECT_EQ(first.size(), 9u);
  expect_binomial(first, 6000, 1.0 / 9.0);
}

TEST(AugmentImages, PaddedCropPositionsAreUniformlyDistributed) {
  // A single pixel amid zeros can appear at 9 positions.
  std::map<std::int64_t, int> places;
  const Dataset dots = Dataset::from_tensor_slices({Tensor::ones({4500, 1, 1, 1})});
  for (const Element& element :
       augment_images(dots, {image::random_crop(3, {.padding = 2})}, {.seed = 8})) {
    const Numbers pixels = numbers_of(element[0]);
    const auto place = std::find(pixels.begin(), pixels.end(), 1) - pixels.begin();
    EXPECT_EQ(std::count(pixels.begin(), pixels.end(), 1), 1);
    ++places[place];
  }
  EXPECT_EQ(places.size(), 9u);
  expect_binomial(places, 4500, 1.0 / 9.0);
}

TEST(AugmentImages, HalfOfAllImagesAreFlippedAlongEachAxis) {
  std::map<std::int64_t, int> corners;
  const Dataset dataset =
      augment_images(coordinates(4000, 2, 2),
                     {image::random_flip_left_right(), image::random_flip_up_down()}, {.seed = 4});
  for (const Element& element : dataset) ++corners[numbers_of(element[0])[0]];
  EXPECT_EQ(corners.size(), 4u);  // all four corners occur, because the two flips are independent
  expect_binomial(corners, 4000, 0.25);
}

TEST(AugmentImages, CutoutSquareIsCenteredUniformly) {
  std::map<std::int64_t, int> erased, sizes;
  const Dataset ones = Dataset::from_tensor_slices({Tensor::ones({6000, 3, 4, 1})});
  for (const Element& element : augment_images(ones, {image::cutout(2)}, {.seed = 2})) {
    const Numbers pixels = numbers_of(element[0]);
    ++sizes[std::count(pixels.begin(), pixels.end(), 0)];
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      if (pixels[i] == 0) ++erased[static_cast<std::int64_t>(i)];
    }
  }
  // The square begins one pixel above and left of its centre, so it is clipped only if the centre
  // is in the top row or the left column. Of 12 centres, 6 erase 4 pixels, 2 + 3 erase 2 pixels,
  // and 1 erases 1.
  expect_binomial({{4, sizes[4]}}, 6000, 6.0 / 12.0);
  expect_binomial({{2, sizes[2]}}, 6000, 5.0 / 12.0);
  expect_binomial({{1, sizes[1]}}, 6000, 1.0 / 12.0);
  // The last pixel is erased only if it is the centre itself; an inner pixel is erased for 4 of the
  // 12 centres.
  expect_binomial({{11, erased[11]}}, 6000, 1.0 / 12.0);
  expect_binomial({{5, erased[5]}}, 6000, 4.0 / 12.0);
}

TEST(AugmentImages, BrightnessDeltasAndContrastFactorsCoverTheirRange) {
  const Tensor image = Tensor::from<float>({1, 2, 1}, {0.25f, 0.75f});
  double lowest = 9, highest = -9, sum = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const RandomStream random(RandomKey{.seed = i, .purpose = kAugmentPurpose});
    const auto bright = image::random_brightness(0.5)(image, random).to_doubles();
    lowest = std::min(lowest, bright[0]);
    highest = std::max(highest, bright[0]);
    sum += bright[0];
    // The random contrast factor of 0.5 to 2.0 scales the distance of 0.5 between the two pixels.
    const auto sharp = image::random_contrast(0.5, 2.0)(image, random).to_doubles();
    EXPECT_GE(sharp[1] - sharp[0], 0.25 - 1e-6);
    EXPECT_LT(sharp[1] - sharp[0], 1.0 + 1e-6);
  }
  EXPECT_NEAR(lowest, -0.25, 0.01);
  EXPECT_NEAR(highest, 0.75, 0.01);
  EXPECT_NEAR(sum / 2000, 0.25, 5 * 0.2887 / std::sqrt(2000.0));
}

TEST(AugmentImages, ChangesOnlyNamedComponent) {
  const Tensor images = Tensor::ones({2, 4, 4, 3});
  const Dataset named =
      Dataset::from_tensor_slices({Tensor::ones({2}), images}).map([](const Element& e) {
        return Element({e[0], e[1]}, {"label", "photo"});
      });
  const Dataset cropped = augment_images(named, {image::random_crop(2)}, {.component = "photo"});
  for (const Element& element : cropped) {
    EXPECT_EQ(element.at("photo").shape(), Shape({2, 2, 3}));
    EXPECT_EQ(element.at("label").shape(), Shape());
  }
  EXPECT_ERROR(
      augment_images(named, {image::random_crop(2)}, {.component = "image"}).iterate()->next(),
      kNotFound, "'image'", "label, photo");
}

// An image and its mask use the same random stream and therefore get the same transformation.
TEST(Augment, ImageAndMaskGetSameTransformation) {
  const auto crop = image::random_crop(3);
  const auto flip = image::random_flip_left_right();
  const Dataset pairs = coordinates(20, 6, 6).map([](const Element& e) {
    return Element({e[0], e[0]}, {"image", "mask"});
  });
  const Dataset changed = augment(pairs, [=](const Element& e, const SampleRandom& random) {
    std::vector<Tensor> both;
    for (const Tensor& each : e.tensors()) {
      both.push_back(flip(crop(each, random.stream(0)), random.stream(1)));
    }
    return e.with_tensors(both);
  });
  for (const Element& element : changed) {
    EXPECT_EQ(numbers_of(element.at("image")), numbers_of(element.at("mask")));
  }
}

TEST(AugmentImages, RefusesInvalidSteps) {
  EXPECT_INVALID(augment_images(coordinates(1, 5, 4), {image::random_crop(9, {.padding = 1})})
                     .iterate()
                     ->next(),
                 "image::random_crop", "at least 9 x 9", "got 5 x 4", "padding of 1");
  EXPECT_INVALID(augment_images(coordinates(4, 5, 4).batch(2), {image::random_flip_left_right()})
                     .iterate()
                     ->next(),
                 "image::random_flip_left_right", "before batch()");
  EXPECT_INVALID(image::random_crop(0), "image::random_crop", "1 x 1", "0 x 0");
  EXPECT_INVALID(image::random_crop(3, {.padding = -1}), "padding", "-1");
  EXPECT_INVALID(image::random_contrast(2.0, 1.0), "image::random_contrast", "lower < upper",
                 "lower 2");
  EXPECT_INVALID(image::random_saturation(-1.0, 1.0), "image::random_saturation", "lower -1");
  EXPECT_INVALID(image::random_brightness(-0.1), "image::random_brightness", "-0.1");
  EXPECT_INVALID(image::random_hue(0.6), "image::random_hue", "[0, 0.5]", "0.6");
  EXPECT_INVALID(image::cutout(0), "image::cutout", "0 x 0");
}

std::vector<double> draws(double a, double b, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const RandomKey key{.seed = 11, .purpose = kUserPurpose, .b = static_cast<std::uint64_t>(i)};
    values.push_back(internal::sample_beta(RandomStream(key), a, b));
  }
  return values;
}

TEST(Beta, SamplesHaveExpectedMeanAndVariance) {
  constexpr int kCount = 100000;
  const double shapes[][2] = {{0.1, 0.1}, {0.2, 0.2}, {0.4, 0.4}, {1, 1},
                              {2.5, 2.5}, {2, 5},     {0.3, 3},   {40, 40}};
  for (const auto& [a, b] : shapes) {
    double sum = 0, squares = 0;
    const double mean = a / (a + b);
    for (const double x : draws(a, b, kCount)) {
      ASSERT_GE(x, 0.0);
      ASSERT_LE(x, 1.0);
      sum += x;
      squares += (x - mean) * (x - mean);
    }
    const double variance = a * b / ((a + b) * (a + b) * (a + b + 1));
    EXPECT_NEAR(sum / kCount, mean, 5 * std::sqrt(variance / kCount)) << a << ", " << b;
    EXPECT_NEAR(squares / kCount, variance, 0.025 * variance) << a << ", " << b;
  }
}

/// Returns the largest distance between the empirical distribution and `cdf` (Kolmogorov-Smirnov).
double largest_distance(std::vector<double> values, const std::function<double(double)>& cdf) {
  std::sort(values.begin(), values.end());
  double largest = 0;
  const double count = static_cast<double>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = cdf(values[i]);
    largest = std::max({largest, std::abs(static_cast<double>(i) / count - expected),
                        std::abs(static_cast<double>(i + 1) / count - expected)});
  }
  return largest;
}

// Compares with closed-form distribution functions. The distance exceeds 1.95 / sqrt(n) with
// probability 0.001.
TEST(Beta, SamplesFollowDistributionFunction) {
  constexpr int kCount = 100000;
  const double limit = 1.95 / std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(largest_distance(draws(1, 1, kCount), [](double x) { return x; }), limit);
  EXPECT_LT(
      largest_distance(draws(2, 2, kCount), [](double x) { return 3 * x * x - 2 * x * x * x; }),
      limit);
  EXPECT_LT(
      largest_distance(draws(0.5, 0.5, kCount),
                       [](double x) { return 2 / std::numbers::pi * std::asin(std::sqrt(x)); }),
      limit);
  EXPECT_LT(largest_distance(draws(0.2, 1, kCount), [](double x) { return std::pow(x, 0.2); }),
            limit);
}

TEST(Beta, TinyShapeParametersYieldZeroOrOne) {
  int ones = 0;
  for (const double x : draws(1e-4, 1e-4, 1000)) {
    ASSERT_TRUE(x >= 0.0 && x <= 1.0) << x;
    ones += x > 0.5;
  }
  EXPECT_NEAR(ones, 500, 5 * std::sqrt(250.0));
}

constexpr std::int64_t kRows = 12;

/// Returns rows 0, 1, ...; row r has features [4, 4, 1] filled with r, and the one-hot label of r.
Dataset one_hot_rows(DType dtype = DType::kFloat32) {
  std::vector<double> features, labels;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (int i = 0; i < 16; ++i) features.push_back(static_cast<double>(r));
    for (std::int64_t c = 0; c < kRows; ++c) labels.push_back(r == c ? 1.0 : 0.0);
  }
  if (dtype == DType::kFloat64) {
    return Dataset::from_tensor_slices(
        {Tensor::from({kRows, 4, 4, 1}, features), Tensor::from({kRows, kRows}, labels)});
  }
  return Dataset::from_tensor_slices(
      {Tensor::from({kRows, 4, 4, 1}, std::vector<float>(features.begin(), features.end())),
       Tensor::from({kRows, kRows}, std::vector<float>(labels.begin(), labels.end()))});
}

TEST(Mixup, MixesFeaturesAndLabelsWithSameWeight) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Dataset mixed = mixup(one_hot_rows(dtype).batch(kRows), {.alpha = 1.0, .seed = 3});
    for (std::uint64_t epoch : {0, 1, 2}) {
      const Element batch = *mixed.iterate(epoch)->next();
      EXPECT_EQ(batch[0].dtype(), dtype);
      const auto features = batch[0].to_doubles(), labels = batch[1].to_doubles();
      std::vector<double> received(kRows, 0.0);
      for (std::size_t r = 0; r < kRows; ++r) {
        double total = 0, expected = 0;
        for (std::size_t c = 0; c < kRows; ++c) {
          const double weight = labels[r * kRows + c];
          EXPECT_GE(weight, 0.0);
          total += weight;
          expected += weight * static_cast<double>(c);
          if (c != r && weight > 0) received[c] += 1;
        }
        EXPECT_NEAR(total, 1.0, 1e-6);
        for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(features[r * 16 + i], expected, 1e-5);
      }
      // The partners form a permutation: no row is the partner of two other rows.
      for (const double count : received) EXPECT_LE(count, 1.0);
    }
  }
}

TEST(Mixup, WeightsFollowTheBetaDistribution) {
  // Each row has a different class, so element r of the label of row r is the row's weight.
  std::vector<double> weights;
  const Dataset mixed = mixup(one_hot_rows().batch(kRows).repeat(400), {.alpha = 2.0, .seed = 6});
  for (const Element& batch : mixed) {
    const auto labels = batch[1].to_doubles();
    for (std::size_t r = 0; r < kRows; ++r) {
      if (labels[r * kRows + r] < 1.0) weights.push_back(labels[r * kRows + r]);
    }
  }
  // On average, one of the twelve rows in a batch is its own partner.
  EXPECT_NEAR(static_cast<double>(weights.size()), 400.0 * 11, 200);
  EXPECT_LT(largest_distance(weights, [](double x) { return 3 * x * x - 2 * x * x * x; }),
            1.95 / std::sqrt(static_cast<double>(weights.size())));
}

TEST(Mixup, IsIndependentOfThreadCountAndDiffersPerEpoch) {
  const auto all = [](int calls, std::uint64_t epoch, std::uint64_t seed) {
    std::vector<double> values;
    auto elements = mixup(one_hot_rows().repeat(4).batch(5),
                          {.alpha = 0.4, .seed = seed, .num_parallel_calls = calls})
                        .iterate(epoch);
    while (auto element = elements->next()) {
      for (const double value : (*element)[0].to_doubles()) values.push_back(value);
    }
    return values;
  };
  const auto straight = all(1, 0, 1);
  EXPECT_EQ(straight.size(), 4u * kRows * 16);  // includes the last batch of 3 rows
  EXPECT_EQ(all(4, 0, 1), straight);
  EXPECT_NE(all(1, 1, 1), straight);
  EXPECT_NE(all(1, 0, 2), straight);
}

TEST(Mixup, KeepsBatchSize) {
  const Dataset mixed = mixup(one_hot_rows().batch(5));
  EXPECT_EQ(mixed.batch_size(), 5);
  EXPECT_EQ(mixed.cardinality(), 3);
  EXPECT_TRUE(mixed.source().may_end_in_partial_batch());
}

TEST(Mixup, RefusesInvalidArguments) {
  EXPECT_INVALID(mixup(one_hot_rows().batch(2), {.alpha = 0.0}), "mixup", "alpha above 0", "got 0");
  EXPECT_INVALID(cutmix(one_hot_rows().batch(2), {.alpha = -1.0}), "cutmix", "alpha above 0", "-1");
  const Dataset integers =
      Dataset::from_tensor_slices({Tensor::zeros({4, 2}), Tensor::zeros({4}, DType::kInt64)});
  EXPECT_INVALID(mixup(integers.batch(2)).iterate()->next(), "mixup", "'labels'", "int64",
                 "one_hot()");
  EXPECT_INVALID(mixup(Dataset::from_tensor_slices({Tensor::zeros({4, 2}, DType::kUInt8)}).batch(2))
                     .iterate()
                     ->next(),
                 "mixup", "'features'", "uint8", "convert_image_dtype()");
  EXPECT_ERROR(mixup(one_hot_rows()).iterate()->next(), kFailedPrecondition, "not batched",
               "batch()");
  EXPECT_INVALID(
      cutmix(Dataset::from_tensor_slices({Tensor::zeros({4, 2})}).batch(2)).iterate()->next(),
      "cutmix", "[rows, height, width, channels]", "[2, 2]");
}

TEST(Cutmix, PastesRectangleOfPartnerImage) {
  const Dataset mixed = cutmix(one_hot_rows().batch(kRows).repeat(30), {.seed = 5});
  int cut_rows = 0;
  for (const Element& batch : mixed) {
    const auto features = batch[0].to_doubles(), labels = batch[1].to_doubles();
    for (std::size_t r = 0; r < kRows; ++r) {
      int top = 4, left = 4, bottom = -1, right = -1, foreign = 0;
      double partner = static_cast<double>(r);
      for (int y = 0; y < 4; ++y) {
        for (int x = 0; x < 4; ++x) {
          const double value = features[r * 16 + static_cast<std::size_t>(4 * y + x)];
          if (value == static_cast<double>(r)) continue;
          if (foreign++ == 0) partner = value;
          EXPECT_EQ(value, partner);  // all pasted pixels are from one image
          top = std::min(top, y), left = std::min(left, x);
          bottom = std::max(bottom, y), right = std::max(right, x);
        }
      }
      if (foreign > 0) {
        EXPECT_EQ(foreign, (bottom - top + 1) * (right - left + 1));
        ++cut_rows;
        EXPECT_FLOAT_EQ(static_cast<float>(labels[r * kRows + static_cast<std::size_t>(partner)]),
                        static_cast<float>(foreign) / 16.0f);
      }
      EXPECT_FLOAT_EQ(static_cast<float>(labels[r * kRows + r]),
                      1.0f - static_cast<float>(foreign) / 16.0f);
    }
  }
  EXPECT_GT(cut_rows, 100);
}

TEST(Cutmix, AcceptsUInt8Images) {
  const Dataset bytes = Dataset::from_tensor_slices({Tensor::full({6, 8, 8, 3}, 9, DType::kUInt8)});
  const Element batch = *cutmix(bytes.batch(6)).iterate()->next();
  EXPECT_EQ(batch[0].dtype(), DType::kUInt8);
  for (const double value : batch[0].to_doubles()) EXPECT_EQ(value, 9.0);
}

}  // namespace tutti::testing::augment_test
