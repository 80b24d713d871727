// Compares the mean of towers' gradients with a directly computed mean and with the result of
// all_reduce.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/reduction/average_gradients.h"

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/tensor_matchers.h"

namespace tutti::strategy_tests::average_gradients_test {
using Tower = std::vector<GradientAndVariable>;

Tensor random_values(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{.seed = 3, .purpose = kUserPurpose, .a = number});
}

std::vector<Variable> two_variables() {
  return {Variable(Tensor::zeros({3, 5}), {.name = "weights"}),
          Variable(Tensor::zeros({5}), {.name = "biases"})};
}

std::vector<Tower> random_towers(const std::vector<Variable>& variables, std::size_t count) {
  std::vector<Tower> towers;
  for (std::size_t t = 0; t < count; ++t) {
    Tower& tower = towers.emplace_back();
    for (std::size_t i = 0; i < variables.size(); ++i) {
      tower.push_back({random_values(variables[i].shape(), 10 * t + i), variables[i]});
    }
  }
  return towers;
}

TEST(AverageGradients, WeightsAreNormalizedByTheirSum) {
  const Variable variable(Tensor::zeros({2}), {.name = "weights"});
  const auto tower = [&](const std::vector<float>& values) {
    return Tower{{Tensor::from<float>({2}, values), variable}};
  };
  const std::vector<Tower> towers = {tower({4, 8}), tower({-2, 1}), tower({1000, 1000})};
  const std::vector<double> weights = {1.0, 3.0, 0.0};
  const auto mean = average_gradients(towers, weights);
  testing::expect_tensor(mean.at(0).gradient.dense(), {2},
                         {(1 * 4 + 3 * -2) / 4.0, (1 * 8 + 3 * 1) / 4.0}, 1e-6);
}

TEST(AverageGradients, MatchesDirectlyComputedMean) {
  const std::vector<Variable> variables = two_variables();
  for (const std::size_t count : {1, 2, 3, 8}) {
    const std::vector<Tower> towers = random_towers(variables, count);
    const Tower means = average_gradients(towers);
    ASSERT_EQ(means.size(), variables.size());
    for (std::size_t i = 0; i < variables.size(); ++i) {
      EXPECT_TRUE(means[i].variable == variables[i]);
      std::vector<double> sum(static_cast<std::size_t>(variables[i].shape().num_elements()), 0.0);
      for (const Tower& tower : towers) {
        const std::vector<double> values = tower[i].gradient.dense().to_doubles();
        for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += values[k];
      }
      for (double& value : sum) value /= static_cast<double>(count);
      testing::expect_tensor(means[i].gradient.dense(), variables[i].shape(), sum, 1e-6);
    }
  }
}

TEST(AverageGradients, MatchesAllReduceMeanBitForBit) {
  const std::vector<Variable> variables = two_variables();
  for (const int count : {1, 2, 3, 8}) {
    const std::vector<Tower> towers = random_towers(variables, static_cast<std::size_t>(count));
    const Tower means = average_gradients(towers);
    const auto strategy = mirrored(count);
    const PerReplica<Tensor> reduced = strategy->run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const Tower& own = towers[static_cast<std::size_t>(context.replica_id())];
      return context.all_reduce(ReduceOp::kMean, own[0].gradient.dense().to(context.device()));
    });
    testing::expect_same_bits(reduced[0], means[0].gradient.dense());
  }
}

TEST(AverageGradients, MismatchErrorNamesTowerAndVariable) {
  const std::vector<Variable> variables = two_variables();
  const auto refused = [&](const std::vector<Tower>& towers,
                           const std::vector<std::string>& parts) {
    testing::expect_error(ErrorCode::kInvalidArgument, parts, [&] { average_gradients(towers); });
  };
  refused({}, {"at least one tower"});
  std::vector<Tower> towers = random_towers(variables, 3);
  towers[2][1].gradient = Gradient();
  refused(towers, {"'biases'", "shape [5] of float32 from tower 0", "none from tower 2"});
  towers = random_towers(variables, 3);
  towers[1][0].gradient = Tensor::zeros({5, 3});
  refused(towers, {"'weights'", "[3, 5]", "[5, 3]", "tower 1"});
  towers = random_towers(variables, 2);
  towers[1].pop_back();
  refused(towers, {"tower 1", "2 variables", "got 1"});
  towers = random_towers(variables, 2);
  std::swap(towers[1][0], towers[1][1]);
  refused(towers, {"tower 1", "'weights' at position 0", "'biases'"});
  EXPECT_INVALID(with_variables({}, variables), "2 variables", "got 0");
}

TEST(AverageGradients, KeepsSparseAndMissingGradients) {
  const std::vector<Variable> variables = two_variables();
  const auto rows = [](std::int64_t row, float value) {
    return IndexedSlices{
        Tensor::full({1, 5}, value), Tensor::from<std::int64_t>({1}, {row}), {3, 5}};
  };
  const std::vector<Tower> towers = {{{rows(0, 2.0f), variables[0]}, {Gradient(), variables[1]}},
                                     {{rows(2, 4.0f), variables[0]}, {Gradient(), variables[1]}}};
  const Tower means = average_gradients(towers);
  ASSERT_TRUE(means[0].gradient.is_slices());
  testing::expect_tensor(means[0].gradient.to_dense(), {3, 5},
                         {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2});
  EXPECT_TRUE(means[1].gradient.is_none());
  EXPECT_TRUE(gradients_of(means)[1].is_none());
}

}  // namespace tutti::strategy_tests::average_gradients_test
