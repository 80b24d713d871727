// FullyShardedStrategy over several workers: shards of all replicas, read and updated together.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"

namespace tutti::strategy_tests {
namespace fully_sharded_workers_test {

const std::vector<std::vector<int>> kTeams = {{1, 1}, {2, 2}, {1, 2}, {1, 1, 1, 1}};

int sum_of(const std::vector<int>& numbers) {
  int sum = 0;
  for (const int number : numbers) sum += number;
  return sum;
}

TEST(FullyShardedWorkers, WorkersOwnEvenPartsOfAll) {
  expect_no_error(run_sharded({1, 2}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({12, 16}, 2.0), {.name = "w"});
    const std::vector<Tensor> own = w.storage().local_components();
    EXPECT_EQ(static_cast<int>(own.size()), strategy.worker() == 0 ? 1 : 2);
    for (const Tensor& shard : own) EXPECT_EQ(shard.num_elements(), 64);
    EXPECT_EQ(numbers(w.value()), copies_of(2.0, 192));
  }));
}

/// Of the rule and clipping that need norms of the whole.
std::string trained_with_norms(Strategy& strategy) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {
      Variable(random_normal({9, 33}, RandomKey{5, kUserPurpose, 1, 0, 0}), {.name = "w"})};
  Lamb optimizer(variables, {.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.5}});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      const Tensor x = Tensor::full({2, 9}, 1.0 + replica_number(), DType::kFloat32,
                                    ReplicaContext::current().device());
      GradientTape tape;
      const Tensor loss = reduce_sum(square(matmul(x, variables[0].value())));
      optimizer.minimize(tape, loss);
    });
  }
  std::vector<Variable> all = optimizer.state_variables();
  all.push_back(variables[0]);
  return hash_variables(all);
}

TEST(FullyShardedWorkers, TheBitsAreThoseOfMirrored) {
  for (const std::vector<int>& team : kTeams) {
    const Trained expected = train(*mirrored(sum_of(team)));
    const std::string with_norms = trained_with_norms(*mirrored(sum_of(team)));
    for (const int stage : {1, 2, 3}) {
      const std::string name = concat("workers with replicas ", join(team), ", stage ", stage);
      const testing::HangWatchdog watchdog(name);
      expect_no_error(run_sharded(team, stage, [&](FullyShardedStrategy& strategy) {
        const Trained trained = train(strategy);
        EXPECT_EQ(trained.weights, expected.weights) << name;
        EXPECT_EQ(trained.slots, expected.slots) << name;
        EXPECT_EQ(trained.losses, expected.losses) << name;
        EXPECT_EQ(trained_with_norms(strategy), with_norms) << name;
      }));
    }
  }
}

/// What worker 0 of two sends while `body` runs in its only replica.
std::uint64_t bytes_sent(int stage, const std::function<void(const Variable&)>& body) {
  const auto transports = in_process_transports(2);
  std::uint64_t bytes = 0;
  expect_no_error(errors_of_ranks(2, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    FullyShardedStrategy strategy(make_communicator(transports[w]),
                                  {.local = on_cpus(1), .stage = stage, .min_shard_bytes = 0});
    const auto scope = strategy.scope();
    const Variable weights(Tensor::ones({256, 256}), {.name = "w"});
    const std::uint64_t before = transports[w]->stats().bytes_sent;
    strategy.run([&] { body(weights); });
    if (worker == 0) bytes = transports[w]->stats().bytes_sent - before;
  }));
  return bytes;
}

constexpr double kWeightBytes = 256 * 256 * 4;

TEST(FullyShardedWorkers, In16BitsAReadMovesHalfTheBytes) {
  const auto read_as = [](std::optional<DType> type) {
    return static_cast<double>(bytes_sent(3, [type](const Variable& w) {
      const AutocastScope types(type);
      EXPECT_EQ(numbers(w.value()), copies_of(1.0, 256 * 256));
    }));
  };
  EXPECT_NEAR(read_as(std::nullopt), kWeightBytes / 2, 1000);
  EXPECT_NEAR(read_as(DType::kBFloat16), kWeightBytes / 4, 1000);
}

TEST(FullyShardedWorkers, WritesReachTheShardsOfAll) {
  for (const int stage : {2, 3}) {
    expect_no_error(run_sharded({1, 2}, stage, [](FullyShardedStrategy& strategy) {
      const auto scope = strategy.scope();
      Variable w(Tensor::zeros({50}), {.name = "w", .aggregation = VariableAggregation::kMean});
      strategy.run([&] {
        (void)w.value();
        w.assign_add(Tensor::full({50}, replica_number(), DType::kFloat32,
                                  ReplicaContext::current().device()));
      });
      EXPECT_EQ(numbers(w.value()), copies_of(1.0, 50));
      w.scatter_update({Tensor{7.f, 8.f}, Tensor::from<std::int64_t>({2}, {0, 49}), {50}});
      std::vector<double> expected = copies_of(1.0, 50);
      expected.front() = 7.0;
      expected.back() = 8.0;
      const auto values = strategy.run([&] { return w.value(); });
      for (const Tensor& value : values) EXPECT_EQ(numbers(value), expected);
      EXPECT_EQ(numbers(w.value()), expected);
    }));
  }
}

TEST(FullyShardedWorkers, AWorkerThatFailsEndsTheReadsOfTheOthers) {
  const auto errors = run_sharded({1, 1}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::zeros({64}), {.name = "w"});
    strategy.run([&] {
      if (strategy.worker() == 1) fail(ErrorCode::kInternal, "no more");
      (void)w.value();
    });
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("no more"));
  EXPECT_THAT(errors[1], ::testing::HasSubstr("no more"));
}

TEST(FullyShardedWorkers, OtherVariablesOnAnotherWorkerAreNamed) {
  const auto errors = run_sharded({1, 1}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({64}, strategy.worker()), {.name = "w"});
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("the workers make different variables"));
  }
}

}  // namespace fully_sharded_workers_test
}  // namespace tutti::strategy_tests
