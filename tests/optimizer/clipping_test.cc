// Clipping against plain loops, and independent of how gradients arose.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer.h"

#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"

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
  for (const std::size_t count : {0, 1, 4095, 4096, 4097, 30000}) {
    const auto values = gradients_of_steps(1, count)[0];
    EXPECT_EQ(sum_of_squares(doubles(values)), norm_by_blocks(values)) << count;
  }
  EXPECT_EQ(sum_of_squares(Gradient()), 0.0);
}

TEST(ClippingTest, OneKindWithAPositiveLimit) {
  const auto make = [](const ClippingOptions& clipping) {
    Sgd(std::vector{variable(doubles({0.0}), "w")}, {.clipping = clipping});
  };
  expect_error(kInvalid, {"sgd", "at most one of clipnorm, clipvalue and global_clipnorm"},
               [&] { make({.clipnorm = 1.0, .clipvalue = 1.0}); });
  expect_error(kInvalid, {"positive", "-2"}, [&] { make({.clipnorm = -2.0}); });
  expect_error(kInvalid, {"positive"}, [&] { make({.global_clipnorm = 0.0}); });
}

TEST(ClippingTest, AppliesToTheReducedGradient) {
  RecordingReducer reducer(/*num_replicas=*/4);
  const GradientReducerScope scope(&reducer);
  Sgd optimizer(std::vector{variable(doubles({0.0, 0.0}), "w")},
                {.learning_rate = 1.0, .clipping = {.global_clipnorm = 10.0}});
  // [3, 4] is within the limit; the sum over four replicas, [12, 16], is not: halved.
  expect_near_all(weights_after(optimizer, {{3, 4}}), {-6, -8}, 1e-14);
}

}  // namespace
}  // namespace tutti
