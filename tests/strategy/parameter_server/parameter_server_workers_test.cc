// Several workers that share servers, each worker a thread with a strategy of its own: the bits of
// one process, and every change made once.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::strategy_tests {
namespace {

using PsBody = std::function<void(ParameterServerStrategy&)>;

std::vector<std::string> run_ps_workers(const std::vector<int>& replicas, int num_servers,
                                        const PsBody& body, std::int64_t num_shards = 1) {
  const auto workers = static_cast<int>(replicas.size());
  std::vector<std::shared_ptr<internal::VariableService>> servers;
  for (int i = 0; i < num_servers; ++i) {
    servers.push_back(std::make_shared<internal::VariableStore>(concat("ps ", i)));
  }
  auto communicators = communicators_of(workers, Between::kMessages, {});
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    ParameterServerOptions options;
    options.local = on_cpus(replicas[w]);
    options.variable_partitioner = FixedShardsPartitioner(num_shards);
    ParameterServerStrategy strategy(std::move(communicators[w]), servers, options);
    body(strategy);
  });
}

void expect_bits_of_mirrored(const std::vector<int>& replicas, int num_servers,
                             std::int64_t num_shards) {
  const std::string what = concat("replicas ", join(replicas), ", ", num_servers, " servers");
  const testing::HangWatchdog watchdog(what, std::chrono::seconds(60));
  int total = 0;
  for (const int count : replicas) total += count;
  const Trained expected = train(*mirrored(1, total));
  std::vector<Trained> trained(replicas.size());
  expect_no_error(run_ps_workers(
      replicas, num_servers,
      [&](ParameterServerStrategy& strategy) {
        trained[static_cast<std::size_t>(strategy.worker())] = train(strategy);
      },
      num_shards));
  for (const Trained& each : trained) {
    EXPECT_EQ(each.weights, expected.weights) << what;
    EXPECT_EQ(each.slots, expected.slots) << what;
    EXPECT_EQ(each.losses, expected.losses) << what;
  }
}

TEST(ParameterServerWorkers, TrainWithTheBitsOfMirroredStrategy) {
  expect_bits_of_mirrored({1, 1}, 1, 1);
  expect_bits_of_mirrored({1, 1, 1}, 2, 3);
  expect_bits_of_mirrored({2, 1}, 2, 2);
  expect_bits_of_mirrored({2, 2}, 3, 1);
}

TEST(ParameterServerWorkers, CountWhatAllOfThemAssignOnce) {
  const testing::HangWatchdog watchdog("assignments of workers");
  expect_no_error(run_ps_workers({1, 2}, 2, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable sum(num(0.0), {.name = "sum", .aggregation = VariableAggregation::kSum});
    Variable outside(num(0.0), {.name = "outside"});
    for (int step = 1; step <= 3; ++step) {
      outside.assign_add(1.0);
      EXPECT_EQ(outside.value().item(), static_cast<float>(step));
      const auto seen = strategy.run([&] {
        sum.assign_add(num(replica_number()));
        return sum.value();
      });
      for (const double value : numbers(seen)) EXPECT_EQ(value, 3.0 * step);  // 0 + 1 + 2
    }
  }));
}

TEST(ParameterServerWorkers, UnsummedGradientsOfWorkersMustBeEqual) {
  const testing::HangWatchdog watchdog("gradients that are not summed");
  const auto errors = run_ps_workers({1, 1}, 1, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable v(num(0.0), {.name = "v"});
    Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.5});
    const auto apply = [&](float gradient) {
      optimizer.apply_gradients(std::vector<Gradient>{num(gradient)},
                                {.aggregation = GradientAggregation::kNone});
    };
    strategy.run([&] { apply(2.0f); });
    EXPECT_EQ(v.value().item(), -1.0f);
    strategy.run([&] { apply(replica_number()); });
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("Variable 'v': replicas 0 and 1 share its value"));
  }
}

TEST(ParameterServerWorkers, DifferentVariablesAreRefusedNamingBoth) {
  const testing::HangWatchdog watchdog("different variables");
  const auto errors = run_ps_workers({1, 1}, 1, [](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable variable(num(strategy.worker()), {.name = "w"});
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("the workers make different variables"));
  }
}

}  // namespace
}  // namespace tutti::strategy_tests
