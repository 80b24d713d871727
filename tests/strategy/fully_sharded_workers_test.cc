// Tests FullyShardedStrategy across several workers, whose replicas gather and update shards
// together.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::strategy_tests::fully_sharded_workers_test {
const std::vector<std::vector<int>> kTeams = {{1, 1}, {2, 2}, {1, 2}, {1, 1, 1, 1}};

int sum_of(const std::vector<int>& numbers) {
  int sum = 0;
  for (const int number : numbers) sum += number;
  return sum;
}

TEST(FullyShardedWorkers, WorkersOwnEvenShards) {
  expect_no_error(run_sharded({1, 2}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({12, 16}, 2.0), {.name = "w"});
    const std::vector<Tensor> own = w.storage().local_components();
    EXPECT_EQ(static_cast<int>(own.size()), strategy.worker() == 0 ? 1 : 2);
    for (const Tensor& shard : own) EXPECT_EQ(shard.num_elements(), 64);
    EXPECT_EQ(numbers(w.value()), copies_of(2.0, 192));
  }));
}

/// Trains with an optimizer and clipping that need norms of unsharded tensors.
std::string trained_with_norms(Strategy& strategy) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {
      Variable(random_normal({9, 33}, RandomKey{5, kUserPurpose, 1, 0, 0}), {.name = "w"})};
  Lamb optimizer(variables, {.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.5}});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      const Tensor x = filled({2, 9}, 1.0 + replica_number());
      GradientTape tape;
      const Tensor loss = reduce_sum(square(matmul(x, variables[0].value())));
      optimizer.minimize(tape, loss);
    });
  }
  std::vector<Variable> all = optimizer.state_variables();
  all.push_back(variables[0]);
  return hash_variables(all);
}

TEST(FullyShardedWorkers, TrainingMatchesMirroredBitForBit) {
  for (const std::vector<int>& team : kTeams) {
    const Trained expected = train(*mirrored(sum_of(team)));
    const std::string with_norms = trained_with_norms(*mirrored(sum_of(team)));
    for (const int stage : {1, 2, 3}) {
      const std::string name = concat("workers with replicas ", join(team), ", stage ", stage);
      expect_no_error(run_sharded(team, stage, [&](FullyShardedStrategy& strategy) {
        EXPECT_EQ(train(strategy), expected) << name;
        EXPECT_EQ(trained_with_norms(strategy), with_norms) << name;
      }));
    }
  }
}

TEST(FullyShardedWorkers, ReplicasCanReadSlots) {
  expect_no_error(run_sharded({1, 2}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({12, 16}, 2.0), {.name = "w"});
    const Variable slot = w.storage().create_slot("momentum", 3.0);
    strategy.run([&] { EXPECT_EQ(numbers(slot.value()), copies_of(3.0, 192)); });
  }));
}

/// Returns the number of bytes that worker 0 (of two) sends while its only replica runs `body`.
std::uint64_t bytes_sent(int stage, const std::function<void(const Variable&)>& body) {
  const auto transports = in_process_transports(2, false);
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

TEST(FullyShardedWorkers, SixteenBitReadsTransferHalfTheBytes) {
  const auto read_as = [](std::optional<DType> type) {
    return static_cast<double>(bytes_sent(3, [type](const Variable& w) {
      const AutocastScope types(type);
      EXPECT_EQ(numbers(w.value()), copies_of(1.0, 256 * 256));
    }));
  };
  EXPECT_NEAR(read_as(std::nullopt), kWeightBytes / 2, 1000);
  EXPECT_NEAR(read_as(DType::kBFloat16), kWeightBytes / 4, 1000);
}

TEST(FullyShardedWorkers, WorkerReceivesOnlySumsOfItsShards) {
  const auto bytes_of_stage = [](int stage) {
    return static_cast<double>(bytes_sent(stage, [](const Variable& w) {
      const Tensor sums = summed(w, filled({256, 256}, 1.0 + replica_number()));
      for (const double sum : numbers(sums)) EXPECT_EQ(sum, 3.0);
    }));
  };
  EXPECT_NEAR(bytes_of_stage(1), kWeightBytes, 2000);
  EXPECT_NEAR(bytes_of_stage(2), kWeightBytes / 2, 2000);
  EXPECT_NEAR(bytes_of_stage(3), kWeightBytes / 2, 2000);
}

/// Returns the full sums of per-replica gradients for one variable of each type and for a variable
/// that is too small to shard.
std::vector<double> sums_of_gradients(Strategy& strategy, const std::vector<DType>& types) {
  const auto scope = strategy.scope();
  std::vector<Variable> variables;
  for (const DType type : types) {
    variables.emplace_back(Tensor::zeros({13, 29}, type), VariableOptions{.name = concat(type)});
  }
  variables.emplace_back(Tensor::zeros({3}), VariableOptions{.name = "small"});
  const auto sums = strategy.run([&] {
    GradientReducer& reducer = *GradientReducer::current();
    const auto r = static_cast<std::uint64_t>(ReplicaContext::current().replica_id());
    reducer.begin(variables);
    for (std::size_t i = variables.size(); i-- > 0;) {
      const Tensor random =
          random_normal(variables[i].shape(), RandomKey{3, kUserPurpose, r, i, 0});
      reducer.ready(i, cast(random, variables[i].dtype()));
    }
    const std::vector<Gradient> reduced = reducer.finish();
    std::vector<Tensor> wholes;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const Tensor whole = reducer.whole(i, reduced[i]).dense();
      wholes.push_back(cast(reshape(whole, {-1}), DType::kFloat64));
    }
    reducer.updates_done();
    return concat(wholes, 0);
  });
  return numbers(sums[0]);
}

TEST(FullyShardedWorkers, ReduceScatterMatchesAllReduceForEveryDType) {
  const std::vector<DType> all = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                  DType::kFloat64};
  for (const WireCompression compression : {WireCompression::kNone, WireCompression::kBFloat16}) {
    const std::vector<DType> types =
        compression == WireCompression::kNone ? all : std::vector{DType::kFloat32};
    for (const std::vector<int>& team : kTeams) {
      std::vector<LocalStrategyOptions> options = workers_with(team);
      for (LocalStrategyOptions& each : options) {
        each.cross_device_ops.options.compression = compression;
        each.cross_device_ops.options.bytes_per_pack = 300;
      }
      const std::vector<double> expected = results_of_workers(
          options, [&](Strategy& strategy) { return sums_of_gradients(strategy, types); })[0];
      auto communicators = communicators_of(static_cast<int>(team.size()), Between::kMessages, {});
      expect_no_error(errors_of_ranks(static_cast<int>(team.size()), [&](int worker) {
        const auto w = static_cast<std::size_t>(worker);
        FullyShardedStrategy strategy(std::move(communicators[w]),
                                      {.local = options[w], .stage = 2, .min_shard_bytes = 100});
        EXPECT_EQ(sums_of_gradients(strategy, types), expected) << join(team);
      }));
    }
  }
}

TEST(FullyShardedWorkers, NextValueIsPrefetchedDuringLayerComputation) {
  auto communicators = communicators_of(2, Between::kMessages, {});
  expect_no_error(errors_of_ranks(2, [&](int worker) {
    auto& communicator = communicators[static_cast<std::size_t>(worker)];
    const Communicator& calls = *communicator;
    FullyShardedStrategy strategy(std::move(communicator),
                                  {.local = on_cpus(2), .min_shard_bytes = 0});
    const auto scope = strategy.scope();
    const Variable a(Tensor::full({8, 16}, 1.0), {.name = "a"});
    const Variable b(Tensor::full({8, 16}, 2.0), {.name = "b"});
    for (int run = 0; run < 3; ++run) {
      const std::uint64_t before = calls.progress().finished;
      strategy.run([&] {
        EXPECT_EQ(numbers(a.value()), copies_of(1.0, 128));
        // The previous run recorded that b is read next, so gathering b starts early.
        while (run > 0 && calls.progress().finished < before + 2) {
          Clock::system().sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_EQ(numbers(b.value()), copies_of(2.0, 128));
      });
      EXPECT_EQ(calls.progress().finished, before + 2) << "run " << run;
    }
  }));
}

TEST(FullyShardedWorkers, ReorderedReadsSeeInterveningWrites) {
  expect_no_error(run_sharded({1, 2}, 3, [](FullyShardedStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable a(Tensor::full({8, 16}, 1.0), {.name = "a"});
    Variable b(Tensor::full({8, 16}, 2.0),
               {.name = "b", .aggregation = VariableAggregation::kMean});
    auto c = std::make_unique<Variable>(Tensor::full({8, 16}, 3.0), VariableOptions{.name = "c"});
    const auto expect = [](const Variable& variable, double value) {
      EXPECT_EQ(numbers(variable.value()), copies_of(value, 128));
    };
    const auto read_all = [&] { expect(a, 1.0), expect(b, 2.0), expect(*c, 3.0); };
    for (int i = 0; i < 2; ++i) strategy.run(read_all);
    strategy.run([&] { expect(*c, 3.0), expect(b, 2.0), expect(a, 1.0); });
    strategy.run(read_all);
    strategy.run([&] {
      expect(a, 1.0);
      const AutocastScope in_16_bits(DType::kBFloat16);  // b was prefetched as float32
      EXPECT_EQ(b.value().dtype(), DType::kBFloat16);
      expect(b, 2.0);
    });
    for (int i = 0; i < 2; ++i) strategy.run([&] { expect(a, 1.0), expect(b, 2.0); });
    strategy.run([&] {
      expect(a, 1.0);
      b.assign(Tensor::full({8, 16}, 4.0));  // the gather of b is in flight
      expect(b, 4.0);
    });
    strategy.run([&] { expect(a, 1.0); });  // reads fewer variables than the previous run
    strategy.run([&] { expect(*c, 3.0), expect(b, 4.0), expect(a, 1.0); });
    c.reset();
    strategy.run([&] { expect(a, 1.0), expect(b, 4.0); });
    expect(b, 4.0);
  }));
}

TEST(FullyShardedWorkers, WritesReachShardsOnAllWorkers) {
  for (const int stage : {2, 3}) {
    expect_no_error(run_sharded({1, 2}, stage, [](FullyShardedStrategy& strategy) {
      const auto scope = strategy.scope();
      Variable w(Tensor::zeros({50}), {.name = "w", .aggregation = VariableAggregation::kMean});
      strategy.run([&] {
        (void)w.value();
        w.assign_add(filled({50}, replica_number()));
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

}  // namespace tutti::strategy_tests::fully_sharded_workers_test
