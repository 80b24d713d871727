// Mixup, cutmix and the beta distribution behind them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/augment.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/data/dataset_values.h"
#include "tutti/data/augment.h"

namespace tutti {
namespace mixup_test {

using data_test::expect_error;

std::vector<double> draws(double a, double b, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const RandomKey key{.seed = 11, .purpose = kUserPurpose, .b = static_cast<std::uint64_t>(i)};
    values.push_back(internal::sample_beta(RandomStream(key), a, b));
  }
  return values;
}

TEST(Beta, HasItsMeanAndVariance) {
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

/// Largest distance between the empirical distribution and `cdf` (Kolmogorov, Smirnov).
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

// Distribution functions in closed form. A distance of 1.95 / sqrt(n) has probability 0.001.
TEST(Beta, HasItsDistribution) {
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

TEST(Beta, OfTinyShapesIsZeroOrOne) {
  int ones = 0;
  for (const double x : draws(1e-4, 1e-4, 1000)) {
    ASSERT_TRUE(x >= 0.0 && x <= 1.0) << x;
    ones += x > 0.5;
  }
  EXPECT_NEAR(ones, 500, 5 * std::sqrt(250.0));
}

constexpr std::int64_t kRows = 12;

/// Row r: features [2, 2, 1] full of r, one-hot labels of class r.
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

TEST(Mixup, MixesFeaturesAndLabelsByTheSameWeight) {
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
      // A permutation: nobody is the partner of two rows.
      for (const double count : received) EXPECT_LE(count, 1.0);
    }
  }
}

TEST(Mixup, WeightsFollowTheBetaDistribution) {
  // Classes 0 and 1 in turn: a label of a mixed pair shows the weight.
  std::vector<double> weights;
  const Dataset mixed = mixup(one_hot_rows().batch(kRows).repeat(400), {.alpha = 2.0, .seed = 6});
  for (const Element& batch : mixed) {
    const auto labels = batch[1].to_doubles();
    for (std::size_t r = 0; r < kRows; ++r) {
      if (labels[r * kRows + r] < 1.0) weights.push_back(labels[r * kRows + r]);
    }
  }
  // One of twelve rows has itself as its partner.
  EXPECT_NEAR(static_cast<double>(weights.size()), 400.0 * 11, 200);
  EXPECT_LT(largest_distance(weights, [](double x) { return 3 * x * x - 2 * x * x * x; }),
            1.95 / std::sqrt(static_cast<double>(weights.size())));
}

TEST(Mixup, IsEqualInAnyNumberOfThreadsAndOtherInEveryEpoch) {
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
  EXPECT_EQ(straight.size(), 4u * kRows * 16);  // the last batch of 3 rows is there, too
  EXPECT_EQ(all(4, 0, 1), straight);
  EXPECT_NE(all(1, 1, 1), straight);
  EXPECT_NE(all(1, 0, 2), straight);
}

TEST(Mixup, KeepsTheBatchSize) {
  const Dataset mixed = mixup(one_hot_rows().batch(5));
  EXPECT_EQ(mixed.batch_size(), 5);
  EXPECT_EQ(mixed.cardinality(), 3);
  EXPECT_TRUE(mixed.source().may_end_in_partial_batch());
}

TEST(Mixup, MistakesAreNamed) {
  const auto kInvalid = ErrorCode::kInvalidArgument;
  expect_error(kInvalid, {"mixup", "alpha above 0", "got 0"},
               [] { mixup(one_hot_rows().batch(2), {.alpha = 0.0}); });
  expect_error(kInvalid, {"cutmix", "alpha above 0", "-1"},
               [] { cutmix(one_hot_rows().batch(2), {.alpha = -1.0}); });
  const Dataset integers =
      Dataset::from_tensor_slices({Tensor::zeros({4, 2}), Tensor::zeros({4}, DType::kInt64)});
  expect_error(kInvalid, {"mixup", "'labels'", "int64", "one_hot()"},
               [&] { mixup(integers.batch(2)).iterate()->next(); });
  expect_error(kInvalid, {"mixup", "'features'", "uint8", "convert_image_dtype()"}, [] {
    mixup(Dataset::from_tensor_slices({Tensor::zeros({4, 2}, DType::kUInt8)}).batch(2))
        .iterate()
        ->next();
  });
  expect_error(ErrorCode::kFailedPrecondition, {"not batched", "batch()"},
               [] { mixup(one_hot_rows()).iterate()->next(); });
  expect_error(kInvalid, {"cutmix", "[rows, height, width, channels]", "[2, 2]"}, [] {
    cutmix(Dataset::from_tensor_slices({Tensor::zeros({4, 2})}).batch(2)).iterate()->next();
  });
}

TEST(Cutmix, PutsARectangleOfTheOtherPictureIn) {
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
          EXPECT_EQ(value, partner);  // all from one picture
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

TEST(Cutmix, TakesPicturesOfBytes) {
  const Dataset bytes = Dataset::from_tensor_slices({Tensor::full({6, 8, 8, 3}, 9, DType::kUInt8)});
  const Element batch = *cutmix(bytes.batch(6)).iterate()->next();
  EXPECT_EQ(batch[0].dtype(), DType::kUInt8);
  for (const double value : batch[0].to_doubles()) EXPECT_EQ(value, 9.0);
}

}  // namespace mixup_test
}  // namespace tutti
