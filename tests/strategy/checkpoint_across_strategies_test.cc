// What one strategy and number of replicas saved, any other restores.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>

#include "tests/strategy/worker_threads.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/strategy/recovery.h"

namespace tutti {
namespace checkpoint_across_strategies_test {
using strategy_tests::all_strategies;
using strategy_tests::expect_no_error;
using strategy_tests::num;
using strategy_tests::numbers;
using strategy_tests::replica_number;
using strategy_tests::run_workers;
using strategy_tests::workers_with;

/// A way to train: calls its argument with a new strategy, in each worker where there are several.
struct Way {
  std::string name;
  std::function<void(const std::function<void(Strategy&)>&)> run;
};

/// Each strategy of one process, no strategy, and two workers.
std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const auto& each : all_strategies()) {
    ways.push_back({each.name, [each](const auto& body) { body(*each.make()); }});
  }
  ways.push_back({"none", [](const auto& body) { body(default_strategy()); }});
  ways.push_back({"workers_2", [](const auto& body) {
                    expect_no_error(run_workers(workers_with({1, 1}), body));
                  }});
  return ways;
}

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
  Checkpoint checkpoint(Strategy& strategy) const {
    return Checkpoint({weights, seen, mean}, checkpoint_options(strategy));
  }
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

void expect_restored(const Way& to, const std::string& folder, const Read& expected) {
  to.run([&](Strategy& strategy) {
    const auto scope = strategy.scope();
    State state;
    CheckpointManager manager(state.checkpoint(strategy), folder);
    ASSERT_TRUE(manager.restore_latest());
    EXPECT_EQ(Read(state), expected);
    train(strategy, state);  // goes on
    EXPECT_EQ(Read(state).weights[0], expected.weights[0] + 0.25);
  });
}

Read train_and_save(const Way& from, const std::string& folder) {
  Mutex mutex;
  std::optional<Read> saved;
  from.run([&](Strategy& strategy) {
    const auto scope = strategy.scope();
    State state;
    state.weights.assign(Tensor::full({5, 2}, 0.375));
    train(strategy, state);
    CheckpointManager manager(state.checkpoint(strategy), folder, {.asynchronous = true});
    manager.save(1);
    const Read own(state);
    {
      MutexLock lock(mutex);
      EXPECT_EQ(saved.value_or(own), own);  // all workers have the same
      saved = own;
    }
    train(strategy, state);  // not part of it
  });
  return saved.value();
}

TEST(CheckpointAcrossStrategies, RestoresBetweenEveryPairOfStrategies) {
  const std::string folder =
      (std::filesystem::path(::testing::TempDir()) / "tutti_across_strategies").string();
  for (const Way& from : all_ways()) {
    std::filesystem::remove_all(folder);
    const Read saved = train_and_save(from, folder);
    for (const Way& to : all_ways()) {
      SCOPED_TRACE(from.name + " to " + to.name);
      expect_restored(to, folder, saved);
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace checkpoint_across_strategies_test
}  // namespace tutti
