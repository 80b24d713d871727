// Tests random tensors and dropout: pure functions of key and index, with the right distributions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/random_ops.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti::random_ops_test {

using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr RandomKey kKey{7, kUserPurpose, 1, 2, 3};
constexpr RandomKey kOtherKey{7, kUserPurpose, 1, 2, 4};
constexpr std::int64_t kCount = 100000;

struct Statistics {
  explicit Statistics(const Tensor& x) {
    const std::vector<double> values = x.to_doubles();
    low = *std::min_element(values.begin(), values.end());
    high = *std::max_element(values.begin(), values.end());
    for (double value : values) mean += value / static_cast<double>(values.size());
    for (double value : values) {
      variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
    }
  }
  double low, high, mean = 0.0, variance = 0.0;
};

TEST(RandomUniform, FillsTheIntervalEvenly) {
  for (DType dtype : kTypes) {
    const Statistics s(random_uniform({kCount}, kKey, -2, 4, dtype));
    EXPECT_GE(s.low, -2.0);
    EXPECT_LT(s.high, 4.0);
    EXPECT_NEAR(s.low, -2.0, 1e-3);
    EXPECT_NEAR(s.high, 4.0, 1e-3);
    EXPECT_NEAR(s.mean, 1.0, 0.03);      // standard error 0.0055
    EXPECT_NEAR(s.variance, 3.0, 0.05);  // 36 / 12
  }
}

// For the largest u, 1 + u rounds to 2; if the limits are neighbouring floats, half of the values
// would.
TEST(RandomUniform, NeverReachesTheUpperLimit) {
  const float high = std::nextafter(1.0f, 2.0f);
  const Statistics s(random_uniform({1000}, kKey, 1.0, static_cast<double>(high)));
  EXPECT_EQ(s.low, 1.0);
  EXPECT_EQ(s.high, 1.0);
  expect_tensor(random_uniform({3}, kKey, 5, 5), {3}, {5, 5, 5});
}

TEST(RandomUniform, SixteenBitsNeverRoundUpToTheLimit) {
  const std::pair<double, double> intervals[] = {{0.0, 1.0}, {-2.0, -1.0}, {-1.0, 0.0}, {1.0, 1.3}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [low, high] : intervals) {
      SCOPED_TRACE(concat(dtype, " ", low, " ", high));
      const Statistics s(random_uniform({kCount}, kKey, low, high, dtype));
      EXPECT_GE(s.low, low);
      EXPECT_LT(s.high, high);
      EXPECT_NEAR(s.high, high, 0.01);
    }
  }
}

/// With 16-bit noise, the hopeless class would be drawn once in 512 times.
TEST(RandomCategorical, SixteenBitLogitsNeverChooseAHopelessClass) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor logits = cast(Tensor::from<float>({1, 2}, {0.0f, -100.0f}), dtype);
    EXPECT_EQ(reduce_sum(random_categorical(logits, kCount, kKey)).item_int(), 0);
  }
}

TEST(RandomNormal, HasMeanAndDeviation) {
  for (DType dtype : kTypes) {
    const Statistics s(random_normal({kCount}, kKey, 3, 2, dtype));
    EXPECT_NEAR(s.mean, 3.0, 0.04);      // standard error 0.0063
    EXPECT_NEAR(s.variance, 4.0, 0.12);  // standard error 0.018
    EXPECT_GT(s.high, 3.0 + 3.5 * 2);
  }
}

TEST(TruncatedNormal, StaysWithinTwoDeviations) {
  for (DType dtype : kTypes) {
    const Statistics s(truncated_normal({kCount}, kKey, 1, 0.5, dtype));
    EXPECT_GE(s.low, 0.0);
    EXPECT_LE(s.high, 2.0);
    EXPECT_NEAR(s.low, 0.0, 0.01);
    EXPECT_NEAR(s.mean, 1.0, 0.01);
    // A standard normal truncated at 2 has variance 0.7737.
    EXPECT_NEAR(s.variance, 0.25 * 0.7737, 0.005);
  }
}

TEST(RandomTensors, ElementsDependOnKeyAndIndexAlone) {
  for (DType dtype : kTypes) {
    const auto uniform = [&](const Shape& shape, const RandomKey& key) {
      return random_uniform(shape, key, 0, 1, dtype);
    };
    const auto normal = [&](const Shape& shape, const RandomKey& key) {
      return random_normal(shape, key, 0, 1, dtype);
    };
    const auto truncated = [&](const Shape& shape, const RandomKey& key) {
      return truncated_normal(shape, key, 0, 1, dtype);
    };
    const auto check = [&](const auto& make) {
      const Tensor all = make(Shape{1000}, kKey);
      expect_same_bits(make(Shape{1000}, kKey), all);
      expect_same_bits(make(Shape{7}, kKey), all.detached_rows(0, 7));
      expect_same_bits(make(Shape{10, 100}, kKey), all.detached_reshape({10, 100}));
      const auto values = all.to_doubles(), others = make(Shape{1000}, kOtherKey).to_doubles();
      int equal = 0;
      for (std::size_t i = 0; i < values.size(); ++i) equal += values[i] == others[i];
      EXPECT_LT(equal, 3);
      EXPECT_EQ(make(Shape{0, 5}, kKey).shape(), (Shape{0, 5}));
    };
    check(uniform);
    check(normal);
    check(truncated);
  }
}

// `{}` is how C++ omits a middle argument: it must not always be the same key.
TEST(RandomTensors, BracesInThePlaceOfTheKeyDrawFreshNumbers) {
  using Make = std::function<Tensor()>;
  const Tensor ones = Tensor::ones({64});
  const Tensor logits = Tensor::zeros({1, 1000});
  const std::vector<std::pair<Make, Make>> braces_and_without = {
      {[] { return random_uniform({8}, {}, 0.0, 10.0); },
       [] { return random_uniform({8}, next_random_key(), 0.0, 10.0); }},
      {[] { return random_normal({8}, {}, 1.0, 2.0); },
       [] { return random_normal({8}, next_random_key(), 1.0, 2.0); }},
      {[] { return truncated_normal({8}, {}, 1.0, 2.0); },
       [] { return truncated_normal({8}, next_random_key(), 1.0, 2.0); }},
      {[&] { return dropout(ones, 0.5, {}); },
       [&] { return dropout(ones, 0.5, next_random_key()); }},
      {[&] { return random_categorical(logits, 8, {}); },
       [&] { return random_categorical(logits, 8); }},
  };
  for (const auto& [braces, without] : braces_and_without) {
    set_random_seed(1);
    const auto first = braces().to_doubles(), second = braces().to_doubles();
    EXPECT_NE(first, second);
    set_random_seed(1);
    EXPECT_EQ(without().to_doubles(), first);
    EXPECT_EQ(without().to_doubles(), second);
  }
  // A key that equals the default is still an explicit key.
  EXPECT_EQ(random_uniform({8}, RandomKey{}).to_doubles(),
            random_uniform({8}, {.seed = 0}).to_doubles());
}

TEST(RandomTensors, WrongArgumentsAreRefused) {
  EXPECT_INVALID(random_uniform({3}, kKey, 2, 1), "random_uniform", "2", "1");
  EXPECT_INVALID(random_normal({3}, kKey, 0, 1, DType::kInt32), "random_normal", "int32");
}

// Therefore the gradient of dropout is dropout of dy.
TEST(Dropout, MaskDependsOnKeyAndIndexAlone) {
  for (DType dtype : kTypes) {
    const Tensor a = random_values({2500}, dtype, 1, 2, 1);
    const Tensor b = random_values({50, 50}, dtype, 1, 2, 2);
    const auto as = dropout(a, 0.5, kKey).to_doubles(), bs = dropout(b, 0.5, kKey).to_doubles();
    const auto others = dropout(a, 0.5, kOtherKey).to_doubles();
    int differing = 0;
    for (std::size_t i = 0; i < as.size(); ++i) {
      EXPECT_EQ(as[i] == 0.0, bs[i] == 0.0) << i;
      differing += (as[i] == 0.0) != (others[i] == 0.0);
    }
    EXPECT_GT(differing, 1000);
    expect_same_bits(dropout(a.detached_rows(0, 1500), 0.5, kKey),
                     dropout(a, 0.5, kKey).detached_rows(0, 1500));
  }
}

TEST(Dropout, EdgesOfTheRate) {
  const Tensor x = random_values({100}, DType::kFloat32, -1, 1);
  expect_same_bits(dropout(x, 0.0, kKey), x);
  const float inf = std::numeric_limits<float>::infinity();
  for (double value : dropout(Tensor::full({100}, inf), 0.5, kKey).to_doubles()) {
    EXPECT_TRUE(value == 0.0 || value == static_cast<double>(inf)) << value;
  }
  EXPECT_EQ(dropout(Tensor::zeros({0, 4}), 0.5, kKey).shape(), (Shape{0, 4}));
  EXPECT_INVALID(dropout(x, 1.0, kKey), "dropout at random_ops_test.cc:", "[0, 1)", "got 1");
  EXPECT_INVALID(dropout(Tensor::zeros({3}, DType::kInt64), 0.5, kKey), "int64");
}

}  // namespace tutti::random_ops_test
