// What one strategy and number of replicas saved, any other restores.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/checkpoint/checkpoint_manager.h"

namespace tutti {
namespace checkpoint_across_strategies_test {

using strategy_tests::all_strategies;
using strategy_tests::num;
using strategy_tests::numbers;
using strategy_tests::replica_number;
using strategy_tests::StrategyCase;

/// A weight, a count of examples and their mean, made under a strategy.
struct State {
  Variable weights{Tensor::zeros({5, 2}),
                   VariableOptions{.name = "weights", .aggregation = VariableAggregation::kMean}};
  Variable seen{Tensor::scalar(0, DType::kInt64),
                VariableOptions{.name = "seen",
                                .synchronization = VariableSynchronization::kOnRead,
                                .aggregation = VariableAggregation::kSum}};
  Variable mean{Tensor::zeros({}),
                VariableOptions{.name = "mean",
                                .synchronization = VariableSynchronization::kOnRead,
                                .aggregation = VariableAggregation::kMean}};
  Checkpoint checkpoint() const { return Checkpoint({weights, seen, mean}); }
};

struct Read {
  std::vector<double> weights;
  std::int64_t seen = 0;
  double mean = 0;
  explicit Read(const State& state)
      : weights(numbers(state.weights.value())),
        seen(state.seen.value().item_int()),
        mean(state.mean.value().item_double()) {}
  bool operator==(const Read&) const = default;
};

/// A step in which each replica adds other values; whole numbers, so that every order of adding
/// gives the same.
void train(Strategy& strategy, State& state) {
  strategy.run([&] {
    state.weights.assign_add(Tensor::full({5, 2}, 0.25));
    state.seen.assign_add(num(1 + replica_number(), DType::kInt64));
    state.mean.assign(num(6 * (1 + replica_number())));
  });
}

void expect_restored(const StrategyCase& to, const std::string& folder, const Read& expected) {
  const testing::HangWatchdog watchdog(to.name);
  const auto strategy = to.make();
  const auto scope = strategy->scope();
  State state;
  CheckpointManager manager(state.checkpoint(), folder);
  ASSERT_TRUE(manager.restore_latest());
  EXPECT_EQ(Read(state), expected);
  train(*strategy, state);  // goes on
  EXPECT_EQ(Read(state).weights[0], expected.weights[0] + 0.25);
}

Read train_and_save(const StrategyCase& from, const std::string& folder) {
  const testing::HangWatchdog watchdog(from.name);
  const auto strategy = from.make();
  const auto scope = strategy->scope();
  State state;
  state.weights.assign(Tensor::full({5, 2}, 0.375));
  train(*strategy, state);
  CheckpointManager manager(state.checkpoint(), folder, {.asynchronous = true});
  manager.save(1);
  const Read saved(state);
  train(*strategy, state);  // not part of it
  return saved;
}

TEST(CheckpointAcrossStrategies, S4_17_EveryPairAgrees) {
  const std::string folder =
      (std::filesystem::path(::testing::TempDir()) / "tutti_across_strategies").string();
  for (const StrategyCase& from : all_strategies()) {
    std::filesystem::remove_all(folder);
    const Read saved = train_and_save(from, folder);
    for (const StrategyCase& to : all_strategies()) {
      SCOPED_TRACE(from.name + " to " + to.name);
      expect_restored(to, folder, saved);
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace checkpoint_across_strategies_test
}  // namespace tutti
