// Clipping of gradients, and averages of weights.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/optimizer.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

IndexedSlices rows_with_a_duplicate() {
  return {Tensor::from<double>({3, 1}, {3.0, 1.0, 4.0}),
          Tensor::from<std::int64_t>({3}, {2, 0, 2}),
          {4, 1}};  // dense: [1, 0, 7, 0]
}

TEST(ClippingTest, ByValue) {
  const auto clipped = clip_gradients({doubles({-3, 0.5, 2}), Gradient()}, {.clipvalue = 1.0});
  expect_tensor(clipped[0].dense(), {3}, {-1, 0.5, 1});
  EXPECT_TRUE(clipped[1].is_none());
}

TEST(ClippingTest, ByTheNormOfEachGradient) {
  const auto clipped =
      clip_gradients({doubles({3, 4}), doubles({0.3, 0.4}), Gradient()}, {.clipnorm = 1.0});
  expect_tensor(clipped[0].dense(), {2}, {0.6, 0.8}, 1e-15);
  expect_tensor(clipped[1].dense(), {2}, {0.3, 0.4});  // below the limit: untouched
  EXPECT_TRUE(clipped[2].is_none());
}

TEST(ClippingTest, ByTheGlobalNorm) {
  const std::vector<Gradient> gradients = {doubles({3, 0}), Gradient(), doubles({0, 4, 12})};
  const auto clipped = clip_gradients(gradients, {.global_clipnorm = 6.5});  // the norm is 13
  expect_tensor(clipped[0].dense(), {2}, {1.5, 0}, 1e-15);
  EXPECT_TRUE(clipped[1].is_none());
  expect_tensor(clipped[2].dense(), {3}, {0, 2, 6}, 1e-15);
  const auto within = clip_gradients(gradients, {.global_clipnorm = 13.0});
  expect_same_bits(within[2].dense(), gradients[2].dense());
}

/// Gives this replica [3], its shard of the sum [3, 4].
class ShardingReducer final : public GradientReducer {
 public:
  void begin(std::span<const Variable> variables) override { sums_.resize(variables.size()); }
  void ready(std::size_t index, const Gradient& gradient) override { sums_[index] = gradient; }
  std::vector<Gradient> finish() override { return sums_; }
  bool gives_shards() const override { return true; }
  Gradient whole(std::size_t, const Gradient&) override { return doubles({3, 4}); }
  void updates_done() override {}

 private:
  std::vector<Gradient> sums_;
};

TEST(ClippingTest, NormsOfShardsAreThoseOfTheWhole) {
  ShardingReducer reducer;
  const GradientReducerScope scope(&reducer);
  for (const ClippingOptions& clipping :
       {ClippingOptions{.clipnorm = 1.0}, ClippingOptions{.global_clipnorm = 1.0}}) {
    Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
            {.learning_rate = 1.0, .clipping = clipping});
    EXPECT_DOUBLE_EQ(weights_after(sgd, {{3.0}})[0], -3.0 / 5.0);
  }
}

TEST(ClippingTest, RowsCountWithTheirDuplicatesAdded) {
  EXPECT_DOUBLE_EQ(sum_of_squares(rows_with_a_duplicate()), 50.0);
  const auto by_norm = clip_gradients({rows_with_a_duplicate()}, {.clipnorm = std::sqrt(12.5)});
  EXPECT_TRUE(by_norm[0].is_slices());
  expect_tensor(by_norm[0].to_dense(), {4, 1}, {0.5, 0, 3.5, 0}, 1e-14);
  const auto by_value = clip_gradients({rows_with_a_duplicate()}, {.clipvalue = 5.0});
  expect_tensor(by_value[0].to_dense(), {4, 1}, {1, 0, 5, 0});
}

/// The documented order: blocks of 4,096 from left to right, then a tree of neighbours.
double norm_by_blocks(const std::vector<double>& values) {
  std::vector<double> sums;
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    double sum = 0.0;
    for (std::size_t i = first; i < std::min(values.size(), first + 4096); ++i) {
      sum += values[i] * values[i];
    }
    sums.push_back(sum);
  }
  while (sums.size() > 1) {
    std::vector<double> next;
    for (std::size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = next;
  }
  return sums.empty() ? 0.0 : sums[0];
}

TEST(ClippingTest, TheSumOfSquaresFollowsAFixedTree) {
  // 9 blocks and a rest: two groups of four side by side.
  for (const std::size_t count : {0, 1, 4095, 4096, 4097, 30000, 9 * 4096 + 17}) {
    const auto values = gradients_of_steps(1, count)[0];
    EXPECT_EQ(sum_of_squares(doubles(values)), norm_by_blocks(values)) << count;
    const std::vector<float> single(values.begin(), values.end());
    EXPECT_EQ(sum_of_squares(floats(single)), norm_by_blocks({single.begin(), single.end()}))
        << count;
  }
  EXPECT_EQ(sum_of_squares(Gradient()), 0.0);
}

TEST(ClippingTest, OneKindWithAPositiveLimit) {
  const auto make = [](const ClippingOptions& clipping) {
    Sgd(std::vector{variable(doubles({0.0}), "w")}, {.clipping = clipping});
  };
  EXPECT_ERROR(make({.clipnorm = 1.0, .clipvalue = 1.0}), kInvalidArgument, "sgd",
               "at most one of clipnorm, clipvalue and global_clipnorm");
  EXPECT_ERROR(make({.clipnorm = -2.0}), kInvalidArgument, "positive", "-2");
  EXPECT_ERROR(make({.global_clipnorm = 0.0}), kInvalidArgument, "positive");
}

TEST(ClippingTest, AppliesToTheReducedGradient) {
  RecordingReducer reducer(/*num_replicas=*/4);
  const GradientReducerScope scope(&reducer);
  Sgd optimizer(std::vector{variable(doubles({0.0, 0.0}), "w")},
                {.learning_rate = 1.0, .clipping = {.global_clipnorm = 10.0}});
  // [3, 4] is within the limit; the sum over four replicas, [12, 16], is not: halved.
  expect_near_all(weights_after(optimizer, {{3, 4}}), {-6, -8}, 1e-14);
}

TEST(ExponentialMovingAverage, AverageOfANumberHasItsClosedForm) {
  ExponentialMovingAverage averages({.decay = 0.9, .name = "avg"});
  averages.track_number("total_loss");
  EXPECT_EQ(averages.average("total_loss").name(), "total_loss/avg");
  // It begins at 0: after n times 4.68 it is 4.68 * (1 - 0.9^n).
  for (int n = 1; n <= 20; ++n) {
    EXPECT_NEAR(averages.apply_number("total_loss", 4.68), 4.68 * (1.0 - std::pow(0.9, n)), 1e-5);
  }
}

TEST(ExponentialMovingAverage, TheAverageOfAVariableBeginsAtItsValue) {
  Variable w = variable(doubles({1.0, -2.0}), "w");
  ExponentialMovingAverage averages({.decay = 0.75});
  averages.track({&w, 1});
  const Variable& average = averages.average("w");
  EXPECT_EQ(average.name(), "w/ExponentialMovingAverage");
  EXPECT_FALSE(average.trainable());
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{1.0, -2.0}));
  w.assign(doubles({5.0, 2.0}));
  averages.apply();
  averages.apply();
  // 5 - 4 * 0.75^2, 2 - 4 * 0.75^2: all of these are exact.
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{5.0, 2.0}));
  averages.assign_averages();
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
}

TEST(ExponentialMovingAverage, WithANumberOfUpdatesItBeginsQuickly) {
  const ExponentialMovingAverage averages;
  EXPECT_EQ(averages.decay_after(std::nullopt), 0.9999);
  EXPECT_EQ(averages.decay_after(0), 0.1);
  EXPECT_EQ(averages.decay_after(8), 0.5);
  EXPECT_EQ(averages.decay_after(89'989), 89'990.0 / 89'999.0);  // the last below 0.9999
  EXPECT_EQ(averages.decay_after(1'000'000), 0.9999);
  Variable w = variable(doubles({0.0}), "w");
  ExponentialMovingAverage moving;
  moving.track({&w, 1});
  w.assign(1.0);
  moving.apply(8);
  EXPECT_EQ(moving.average("w").value().item_double(), 0.5);
}

TEST(ExponentialMovingAverage, ListsVariablesThenNumbersForCheckpoints) {
  const std::vector<Variable> variables = {variable(floats({1}), "a"), variable(floats({2}), "b")};
  ExponentialMovingAverage averages({.name = "avg"});
  averages.track_number("loss");
  averages.track(variables);
  std::vector<std::string> names;
  for (const Variable& each : averages.averages()) names.push_back(each.name());
  EXPECT_EQ(names, (std::vector<std::string>{"a/avg", "b/avg", "loss/avg"}));
}

TEST(ExponentialMovingAverage, BadUseIsNamed) {
  EXPECT_ERROR(ExponentialMovingAverage({.decay = 1.5}), kInvalidArgument, "decay in [0, 1]",
               "1.5");
  EXPECT_ERROR(ExponentialMovingAverage({.name = ""}), kInvalidArgument, "name");
  ExponentialMovingAverage averages;
  const Variable w = variable(floats({1}), "w");
  averages.track({&w, 1});
  averages.track_number("loss");
  EXPECT_ERROR(averages.track({&w, 1}), kAlreadyExists, "'w'");
  EXPECT_ERROR(averages.track_number("loss"), kAlreadyExists, "'loss'");
  EXPECT_ERROR(averages.average("lost"), kNotFound, "'lost'", "[w, loss]");
  const Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  EXPECT_ERROR(averages.track({&count, 1}), kInvalidArgument, "'count'", "int64");
}

}  // namespace
}  // namespace tutti
