// Unequal devices: shares by weight, limits of memory, and shares that follow measured time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/local_strategy.h"

#include <algorithm>
#include <numeric>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/rebatch.h"
#include "tutti/strategy/share_balancer.h"

namespace tutti {
namespace {

namespace auto_balance_test {

using strategy_tests::on_cpus;
using ::testing::ElementsAre;
using Rows = std::vector<std::int64_t>;

/// Time of each thread of its own, which goes on when that thread says so: replicas that run at
/// the same time have exact times.
class ThreadClock final : public Clock {
 public:
  TimePoint now() const override { return time(); }
  void sleep_until(TimePoint until) override { time() = std::max(time(), until); }

 private:
  static TimePoint& time() {
    thread_local TimePoint time{};
    return time;
  }
};

/// Devices that need so many milliseconds per row, by replica.
struct Machine {
  std::vector<int> milliseconds_per_row;
  ThreadClock clock = {};
};

LocalStrategyOptions balanced_on(Machine& machine) {
  LocalStrategyOptions options = on_cpus(static_cast<int>(machine.milliseconds_per_row.size()));
  options.auto_balance = AutoBalance{.clock = &machine.clock};
  return options;
}

struct Step {
  Rows rows;
  std::int64_t milliseconds = 0;  // of the slowest replica
};

/// Runs steps on batches of `batch` rows.
std::vector<Step> steps_of(Strategy& strategy, Machine& machine, std::int64_t batch, int count) {
  std::vector<Step> steps;
  const Dataset data = Dataset::range(batch).batch(batch).repeat(count);
  for (const PerReplica<Batch>& parts : strategy.distribute_dataset(data)) {
    const PerReplica<std::int64_t> times = strategy.run(
        [&](const Batch& part) {
          const auto r = static_cast<std::size_t>(ReplicaContext::current().replica_id());
          const std::int64_t needed = part.rows() * machine.milliseconds_per_row[r];
          machine.clock.sleep_for(std::chrono::milliseconds(needed));
          return needed;
        },
        parts);
    Step step;
    for (const Batch& part : parts) step.rows.push_back(part.rows());
    step.milliseconds = *std::ranges::max_element(times.values());
    steps.push_back(step);
  }
  return steps;
}

std::int64_t total_milliseconds(const std::vector<Step>& steps) {
  std::int64_t total = 0;
  for (const Step& step : steps) total += step.milliseconds;
  return total;
}

std::vector<double> shares_of(const Strategy& strategy) {
  return {strategy.replica_weights().begin(), strategy.replica_weights().end()};
}

}  // namespace auto_balance_test

TEST(UnequalShares, S1_06_WeightsOf3And1Cut128RowsInto96And32) {
  using namespace auto_balance_test;
  EXPECT_EQ(weighted_replica_rows(128, std::vector<double>{3, 1}), (Rows{96, 32}));
  MirroredStrategy strategy({.devices = "cpu:0-1", .replica_weights = {3, 1}});
  for (const auto& parts : strategy.distribute_dataset(Dataset::range(128).batch(128))) {
    EXPECT_EQ(parts[0].rows(), 96);
    EXPECT_EQ(parts[1].rows(), 32);
    EXPECT_EQ(parts[1].global_rows(), 128);
    EXPECT_EQ(parts[1].element().first_row(), 96);
  }
}

// Replica 1 takes three times as long per row: 192 ms with equal shares, 96 ms with 96 and 32 rows.
TEST(AutoBalanceTest, S1_06_ASlowReplicaGetsFewerRowsAndStepsGetShorter) {
  using namespace auto_balance_test;
  const testing::HangWatchdog watchdog("steps");
  Machine machine{{1, 3}};
  MirroredStrategy strategy(balanced_on(machine));
  const std::vector<Step> steps = steps_of(strategy, machine, 128, 100);
  // Two steps to warm up, then windows of eight; a share changes by a tenth at most.
  for (std::size_t s = 0; s < 10; ++s) EXPECT_EQ(steps[s].rows, (Rows{64, 64})) << s;
  EXPECT_EQ(steps[9].milliseconds, 192);
  for (std::size_t s = 10; s < 18; ++s) EXPECT_EQ(steps[s].rows, (Rows{77, 51})) << s;
  for (std::size_t s = 18; s < 26; ++s) EXPECT_EQ(steps[s].rows, (Rows{90, 38})) << s;
  for (std::size_t s = 26; s < 100; ++s) {  // it comes to rest
    EXPECT_EQ(steps[s].rows, (Rows{96, 32})) << s;
    EXPECT_EQ(steps[s].milliseconds, 96) << s;
  }
  EXPECT_EQ(total_milliseconds(steps), 10 * 192 + 8 * 153 + 8 * 114 + 74 * 96);
  EXPECT_NEAR(strategy.replica_weights()[0], 0.75, 1e-12);
  EXPECT_NEAR(strategy.replica_weights()[1], 0.25, 1e-12);

  MirroredStrategy equal(on_cpus(2));
  EXPECT_EQ(total_milliseconds(steps_of(equal, machine, 128, 100)), 100 * 192);
}

TEST(AutoBalanceTest, SharesAreAFunctionOfTheTimesAlone) {
  using namespace auto_balance_test;
  const testing::HangWatchdog watchdog("steps");
  const auto shares_after = [](ReplicaExecution execution) {
    Machine machine{{4, 1, 2}};
    LocalStrategyOptions options = balanced_on(machine);
    options.execution = execution;
    MirroredStrategy strategy(options);
    steps_of(strategy, machine, 70, 20);
    return shares_of(strategy);
  };
  const std::vector<double> once = shares_after(ReplicaExecution::kThreads);
  EXPECT_EQ(shares_after(ReplicaExecution::kThreads), once);
  EXPECT_EQ(shares_after(ReplicaExecution::kSequential), once);
  EXPECT_LT(once[0], once[2]);
  EXPECT_LT(once[2], once[1]);
}

TEST(AutoBalanceTest, TheLossAndTheUpdateStayThoseOfTheWholeBatch) {
  using namespace auto_balance_test;
  const testing::HangWatchdog watchdog("training");
  Machine machine{{1, 3}};
  const Tensor x = random_uniform({128, 5}, {.seed = 3}), y = random_uniform({128, 1}, {.seed = 4});
  const auto trained = [&](Strategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(Tensor::zeros({5, 1}), {.name = "w"});
    Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.2});
    std::vector<double> losses;
    const Dataset data = Dataset::from_tensor_slices({x, y}).batch(128).repeat(30);
    for (const PerReplica<Batch>& parts : strategy.distribute_dataset(data)) {
      const auto results = strategy.run(
          [&](const Batch& part) {
            const auto r = static_cast<std::size_t>(ReplicaContext::current().replica_id());
            if (strategy.num_replicas_in_sync() > 1) {
              machine.clock.sleep_for(
                  std::chrono::milliseconds(part.rows() * machine.milliseconds_per_row[r]));
            }
            GradientTape tape;
            const Tensor errors = square(matmul(part.features(), w.value()) - part.labels());
            const Tensor loss = reduce_sum(errors) / static_cast<float>(part.global_rows());
            optimizer.minimize(tape, loss);
            return loss;
          },
          parts);
      losses.push_back(strategy.reduce(ReduceOp::kSum, results).item());
    }
    for (const double value : w.value().to_doubles()) losses.push_back(value);
    return losses;
  };
  OneDeviceStrategy one("cpu:0");
  MirroredStrategy moving(balanced_on(machine));
  MirroredStrategy fixed({.devices = "cpu:0-1", .replica_weights = {3, 1}});
  const std::vector<double> expected = trained(one);
  for (Strategy* strategy : {static_cast<Strategy*>(&moving), static_cast<Strategy*>(&fixed)}) {
    const std::vector<double> values = trained(*strategy);
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << i;
  }
  EXPECT_NEAR(moving.replica_weights()[0], 0.75, 1e-12);
}

// A Titan X with 11.92 GiB beside a GTX 970 with 3.94 GiB that takes half as long again per row, in
// a training that needs 1.5 GiB and 24 MiB for each row.
TEST(AutoBalanceTest, S3_06_AFasterAndALargerGpuBesideASmallOne) {
  using namespace auto_balance_test;
  const testing::HangWatchdog watchdog("steps");
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const std::vector<std::uint64_t> memory = {static_cast<std::uint64_t>(11.92 * kGiB),
                                             static_cast<std::uint64_t>(3.94 * kGiB)};
  const Rows limits =
      rows_that_fit(memory, static_cast<std::uint64_t>(1.5 * kGiB), 24ull * 1024 * 1024);
  EXPECT_EQ(limits, (Rows{444, 104}));

  Machine machine{{2, 3}};
  const auto steps_with = [&](std::int64_t batch, int count) {
    LocalStrategyOptions options = balanced_on(machine);
    options.replica_max_rows = limits;
    MirroredStrategy strategy(options);
    return steps_of(strategy, machine, batch, count);
  };
  // Time decides while memory suffices: 0.6 and 0.4 of 192 rows.
  const std::vector<Step> small = steps_with(192, 40);
  EXPECT_EQ(small.front().rows, (Rows{96, 96}));
  EXPECT_EQ(small.front().milliseconds, 288);
  EXPECT_EQ(small.back().rows, (Rows{115, 77}));
  EXPECT_EQ(small.back().milliseconds, 231);
  // Memory decides where it does not: from the first step on, and no move goes beyond it.
  for (const Step& step : steps_with(384, 40)) EXPECT_EQ(step.rows, (Rows{280, 104}));
  EXPECT_TUTTI_ERROR(steps_with(549, 1), ErrorCode::kResourceExhausted,
                     "a batch of 549 rows does not fit the replicas; expected at most 548 rows, "
                     "[444, 104] by replica");
  EXPECT_TUTTI_ERROR(rows_that_fit(memory, static_cast<std::uint64_t>(4 * kGiB), 1),
                     ErrorCode::kResourceExhausted,
                     "replica 1: expected at least 4294967297 bytes");
}

TEST(AutoBalanceTest, ACheckpointHoldsTheShares) {
  using namespace auto_balance_test;
  const testing::HangWatchdog watchdog("steps");
  Machine machine{{1, 3}};
  MirroredStrategy first(balanced_on(machine));
  steps_of(first, machine, 128, 12);
  const Json state = Json::parse(first.save_state().dump());
  MirroredStrategy second(balanced_on(machine));
  second.restore_state(state);
  EXPECT_EQ(shares_of(second), shares_of(first));
  EXPECT_NEAR(second.replica_weights()[0], 0.6, 1e-12);
  EXPECT_EQ(steps_of(second, machine, 128, 1)[0].rows, (Rows{77, 51}));

  Machine larger{{1, 1, 1}};
  MirroredStrategy other(balanced_on(larger));
  other.restore_state(state);  // of another number of replicas: it begins with its own
  EXPECT_NEAR(other.replica_weights()[2], 1.0 / 3.0, 1e-12);
  MirroredStrategy fixed({.devices = "cpu:0-1"});
  fixed.restore_state(state);
  EXPECT_TRUE(fixed.replica_weights().empty());
  EXPECT_EQ(fixed.save_state().find("shares"), nullptr);
}

TEST(AutoBalanceTest, IsRefusedWhereItCannotKeepItsWord) {
  using namespace auto_balance_test;
  const auto make = [](std::optional<bool> deterministic, AutoBalance balance) {
    LocalStrategyOptions options = on_cpus(2);
    options.deterministic = deterministic;
    options.auto_balance = balance;
    return MirroredStrategy(options);
  };
  EXPECT_TUTTI_ERROR(make(true, {}), ErrorCode::kInvalidArgument,
                     "auto_balance with deterministic = true");
  EXPECT_TUTTI_ERROR(make({}, {.window = 0}), ErrorCode::kInvalidArgument, "window");
  EXPECT_TUTTI_ERROR(make({}, {.warm_up = -1}), ErrorCode::kInvalidArgument, "warm_up");
  EXPECT_TUTTI_ERROR(make({}, {.tolerance = 0.0}), ErrorCode::kInvalidArgument, "tolerance");
  EXPECT_TUTTI_ERROR(make({}, {.max_change = 1.5}), ErrorCode::kInvalidArgument, "max_change");
  EXPECT_TUTTI_ERROR(make({}, {.min_share = 0.6}), ErrorCode::kInvalidArgument, "min_share");
  EXPECT_TUTTI_ERROR(make({}, {.clock = nullptr}), ErrorCode::kInvalidArgument, "clock");
  LocalStrategyOptions limits = on_cpus(2);
  limits.replica_max_rows = {4};
  EXPECT_TUTTI_ERROR(MirroredStrategy(std::move(limits)), ErrorCode::kInvalidArgument,
                     "replica_max_rows; expected 2 positive numbers");
}

namespace auto_balance_test {

/// Steps of which all take these seconds per row; the moves.
int moves_in(internal::ShareBalancer& balancer, const std::vector<double>& seconds_per_row,
             int steps, double disturbed_step = 1.0) {
  int moves = 0;
  for (int step = 0; step < steps; ++step) {
    Rows rows = weighted_replica_rows(1000, balancer.shares());
    std::vector<double> seconds;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double factor = r == 0 && step % 5 == 3 ? disturbed_step : 1.0;
      seconds.push_back(static_cast<double>(rows[r]) * seconds_per_row[r] * factor);
    }
    moves += balancer.note(rows, seconds).has_value();
  }
  return moves;
}

}  // namespace auto_balance_test

TEST(ShareBalancer, SmallDifferencesAndDisturbedStepsMoveNothing) {
  using namespace auto_balance_test;
  internal::ShareBalancer balancer({}, {1.0, 1.0}, {});
  EXPECT_EQ(moves_in(balancer, {1.0, 1.0}, 50, /*disturbed_step=*/100.0), 0);
  // 1.08 and 1: a step could be 4 % shorter.
  EXPECT_EQ(moves_in(balancer, {1.08, 1.0}, 50), 0);
  EXPECT_THAT(balancer.shares(), ElementsAre(0.5, 0.5));
  EXPECT_EQ(moves_in(balancer, {1.2, 1.0}, 50), 1);
  EXPECT_NEAR(balancer.shares()[0], 1.0 / 2.2, 1e-12);
}

TEST(ShareBalancer, StepsWithoutRowsOrTimeDoNotCount) {
  using namespace auto_balance_test;
  internal::ShareBalancer balancer({.window = 1, .warm_up = 0}, {1.0, 1.0}, {});
  EXPECT_FALSE(balancer.note(Rows{4, 0}, std::vector<double>{9.0, 1.0}));
  EXPECT_FALSE(balancer.note(Rows{0, 0}, std::vector<double>{9.0, 1.0}));
  EXPECT_FALSE(balancer.note(Rows{4, 4}, std::vector<double>{9.0, 0.0}));
  const auto move = balancer.note(Rows{4, 4}, std::vector<double>{9.0, 1.0});
  ASSERT_TRUE(move);
  EXPECT_THAT(move->from, ElementsAre(0.5, 0.5));
  EXPECT_DOUBLE_EQ(move->to[0], 0.4);
  EXPECT_DOUBLE_EQ(move->to[1], 0.6);
  EXPECT_DOUBLE_EQ(move->seconds, 9.0);
  EXPECT_NEAR(move->expected_part, 0.8, 1e-12);
}

TEST(ShareBalancer, WhoIsVerySlowKeepsARow) {
  using namespace auto_balance_test;
  internal::ShareBalancer balancer({.window = 1, .max_change = 1.0, .min_share = 0.0}, {1.0, 1.0},
                                   {});
  moves_in(balancer, {1.0, 1e6}, 20);
  EXPECT_EQ(weighted_replica_rows(1000, balancer.shares()), (Rows{999, 1}));
  moves_in(balancer, {1.0, 1.0}, 20);  // it has recovered
  EXPECT_NEAR(balancer.shares()[0], 0.5, 0.03);
}

TEST(ShareBalancer, LimitsTakeFromAllInProportion) {
  using namespace auto_balance_test;
  const auto limited = [](std::vector<double> wanted, double least, std::vector<double> most) {
    return internal::limited_shares(wanted, least, most);
  };
  EXPECT_THAT(limited({0.5, 0.3, 0.2}, 0.0, {1, 1, 1}), ElementsAre(0.5, 0.3, 0.2));
  // 0.4 of 0.5 is left to the others, as 3 : 2.
  const std::vector<double> upper = limited({0.5, 0.3, 0.2}, 0.0, {0.4, 1, 1});
  EXPECT_NEAR(upper[1], 0.36, 1e-12);
  EXPECT_NEAR(upper[2], 0.24, 1e-12);
  // What the first cannot take makes the second too large as well.
  const std::vector<double> twice = limited({0.5, 0.3, 0.2}, 0.0, {0.4, 0.35, 1});
  EXPECT_NEAR(twice[1], 0.35, 1e-12);
  EXPECT_NEAR(twice[2], 0.25, 1e-12);
  const std::vector<double> lower = limited({0.98, 0.01, 0.01}, 0.1, {1, 1, 1});
  EXPECT_NEAR(lower[0], 0.8, 1e-12);
  EXPECT_NEAR(lower[1], 0.1, 1e-12);
}

TEST(ReplicaRows, LimitsMoveRowsToThoseWithRoom) {
  using namespace auto_balance_test;
  const auto rows = [](std::int64_t count, std::vector<double> weights, Rows limits) {
    return capped_replica_rows(count, weights, limits);
  };
  EXPECT_EQ(rows(10, {1, 1}, {8, 8}), (Rows{5, 5}));
  EXPECT_EQ(rows(10, {1, 1}, {3, 8}), (Rows{3, 7}));
  EXPECT_EQ(rows(12, {4, 1, 1}, {2, 4, 9}), (Rows{2, 4, 6}));  // in two rounds
  EXPECT_EQ(rows(11, {1, 1}, {3, 8}), (Rows{3, 8}));
  EXPECT_EQ(rows(0, {1, 1}, {3, 8}), (Rows{0, 0}));
  EXPECT_TUTTI_ERROR(rows(12, {1, 1}, {3, 8}), ErrorCode::kResourceExhausted, "at most 11 rows");
  EXPECT_TUTTI_ERROR(rows_that_fit({}, 0, 0), ErrorCode::kInvalidArgument, "1 byte per row");
}

}  // namespace
}  // namespace tutti
