// Gradients of many slices of one value: put together, whatever they cover, at a cost that does not
// square.
// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradients.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

namespace blocks_test {

/// Where a slice of a [4, 6] matrix begins, and its size.
struct Cut {
  std::vector<std::int64_t> begin, size;
};

/// Sum over cuts of (i + 1) * sum of squares of cut i: its gradient is 2 x times the factors of the
/// cuts that cover each element.
Tensor weighed_squares(const Tensor& x, const std::vector<Cut>& cuts) {
  Tensor sum = Tensor::zeros({}, DType::kFloat64);
  double factor = 0.0;
  for (const Cut& cut : cuts)
    sum = sum + reduce_sum(square(slice(x, cut.begin, cut.size))) * (factor += 1.0);
  return sum;
}

std::vector<double> factors(const std::vector<Cut>& cuts) {
  std::vector<double> all(24, 0.0);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    for (std::int64_t r = 0; r < cuts[i].size[0]; ++r) {
      for (std::int64_t c = 0; c < cuts[i].size[1]; ++c) {
        const std::int64_t place = (cuts[i].begin[0] + r) * 6 + cuts[i].begin[1] + c;
        all[static_cast<std::size_t>(place)] += static_cast<double>(i + 1);
      }
    }
  }
  return all;
}

class OpCounter final : public OpObserver {
 public:
  void on_op(const OpCall& call, std::span<const Tensor>) override { ++counts[call.op]; }
  std::map<OpId, int> counts;

 private:
  ObserverScope scope_{*this};
};

}  // namespace blocks_test

using blocks_test::Cut;

class GradientBlocks : public ::testing::TestWithParam<std::vector<Cut>> {};

TEST_P(GradientBlocks, AddUpWhereverTheyLie) {
  const Variable x(random_uniform({4, 6}, {.seed = 3}, -1.0, 1.0, DType::kFloat64));
  const std::vector<double> values = x.value().to_doubles();
  const std::vector<double> factors = blocks_test::factors(GetParam());
  GradientTape outer({.persistent = true});
  Gradient first;
  Tensor sum;
  {
    GradientTape tape;
    first = tape.gradient(blocks_test::weighed_squares(x.value(), GetParam()), x);
    sum = reduce_sum(first.dense() * first.dense());
  }
  const std::vector<double> gradient = first.dense().to_doubles();
  const std::vector<double> second = outer.gradient(sum, x).dense().to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(gradient[i], 2.0 * factors[i] * values[i], 1e-12) << "element " << i;
    EXPECT_NEAR(second[i], 8.0 * factors[i] * factors[i] * values[i], 1e-12) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfAMatrix, GradientBlocks,
    ::testing::Values(std::vector<Cut>{{{1, 2}, {2, 3}}},                    // one
                      std::vector<Cut>{{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}},  // all rows
                      std::vector<Cut>{{{0, 1}, {4, 2}}, {{0, 4}, {4, 1}}},  // gaps
                      std::vector<Cut>{{{0, 0}, {4, 4}},
                                       {{0, 2}, {4, 4}},  // overlap
                                       {{0, 1}, {4, 2}}},
                      std::vector<Cut>{{{0, 0}, {4, 6}}, {{0, 0}, {4, 6}}},  // all, twice
                      std::vector<Cut>{{{1, 0}, {1, 6}},
                                       {{0, 3}, {4, 1}},  // both axes
                                       {{0, 0}, {1, 1}},
                                       {{3, 5}, {1, 1}},
                                       {{3, 0}, {1, 6}}},
                      std::vector<Cut>{{{0, 2}, {4, 0}}, {{0, 2}, {4, 1}}}));  // an empty one

TEST(GradientBlocksCost, UnstackTakesOneConcatenation) {
  const Variable x(Tensor::ones({100, 3}, DType::kFloat64));
  blocks_test::OpCounter counter;
  GradientTape tape;
  Tensor sum = Tensor::zeros({3}, DType::kFloat64);
  for (const Tensor& row : unstack(x.value())) sum = sum + square(row);
  counter.counts.clear();
  const Gradient gradient = tape.gradient(sum, x);
  EXPECT_EQ(gradient.dense().to_doubles(), std::vector<double>(300, 2.0));
  EXPECT_EQ(counter.counts[OpId::kPad], 0);
  EXPECT_EQ(counter.counts[OpId::kConcat], 1);
  EXPECT_LE(counter.counts[OpId::kAdd], 1) << "sums of whole tensors";
}

TEST(GradientBlocksCost, SlicesAddToOtherGradientsOfTheValue) {
  const Variable x(Tensor::from<double>({4}, {1, 2, 3, 4}));
  GradientTape tape;
  const Tensor whole = x.value() * 1.0;
  const Tensor y = reduce_sum(square(whole)) + reduce_sum(slice(whole, {1}, {2})) +
                   reduce_sum(slice(whole, {3}, {1})) +
                   reduce_sum(gather(whole, Tensor::from<std::int64_t>({1}, {0})));
  EXPECT_EQ(tape.gradient(y, x).dense().to_doubles(), (std::vector<double>{3, 5, 7, 9}));
}

}  // namespace
}  // namespace tutti
