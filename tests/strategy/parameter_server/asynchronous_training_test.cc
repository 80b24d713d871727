// Tests scheduled steps that change variables on servers: every change counts once, even if workers
// die.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::asynchronous_training_tests {

using strategy_tests::error_of;
using strategy_tests::num;
using strategy_tests::numbers;
using strategy_tests::on_cpus;
using ::testing::ElementsAre;
using thrown::warnings_of;

/// Fixture that ends a test whose workers wait indefinitely.
class AsynchronousTraining : public ::testing::Test {
  const testing::HangWatchdog watchdog_{"asynchronous training", std::chrono::seconds(120)};
};

ParameterServerOptions with_workers(int workers, int servers = 2, int replicas = 1) {
  ParameterServerOptions options;
  options.local = on_cpus(replicas);
  options.num_servers = servers;
  options.num_workers = workers;
  return options;
}

/// Returns a dataset of the numbers from `first` to `end` - 1, one per element.
Dataset range(std::int64_t first, std::int64_t end) {
  std::vector<float> values;
  for (std::int64_t i = first; i < end; ++i) values.push_back(static_cast<float>(i));
  return Dataset::from_tensors({Tensor::from<float>({end - first}, values)});
}

TEST_F(AsynchronousTraining, StepsReadWorkerDatasetsAndUpdateServerVariables) {
  ParameterServerStrategy strategy(with_workers(5));
  const auto scope = strategy.scope();
  Variable sum(num(0.0), {.name = "sum"});
  ClusterCoordinator coordinator(strategy);
  coordinator.define("add", [&](DatasetIterator& iterator) {
    const Tensor value = reshape(iterator.next().features(), {1});
    sum.assign_add(reduce_sum(value));
    return value;
  });
  coordinator.start();
  const auto dataset = coordinator.create_per_worker_dataset(range(1, 2));
  std::vector<RemoteValue> results;
  for (int i = 0; i < 2; ++i) {
    results.push_back(coordinator.schedule("add", dataset.iterate()));
  }
  coordinator.join();
  for (const RemoteValue& result : results) EXPECT_THAT(numbers(result.fetch()), ElementsAre(1));
  EXPECT_EQ(sum.value().item(), 2.0F);
}

TEST_F(AsynchronousTraining, RunAndReduceAreAllowedInClosure) {
  constexpr int kReplicas = 3;
  ParameterServerStrategy strategy(with_workers(2, 2, kReplicas));
  const auto scope = strategy.scope();
  const Variable v(num(1.0), {.name = "v"});
  Variable first(num(0.0),
                 {.name = "first", .aggregation = VariableAggregation::kOnlyFirstReplica});
  ClusterCoordinator coordinator(strategy);
  coordinator.define("sum", [&](const Tensor& in) {
    const auto pair = [&](double sign) {
      const auto each = strategy.run([&] {
        const Tensor value = v.value();
        return in.to(value.device()) + value * num(sign);
      });
      return strategy.reduce(ReduceOp::kSum, each);
    };
    return std::pair<Tensor, Tensor>(pair(1.0), pair(-1.0));
  });
  coordinator.define("add", [&] { strategy.run([&] { first.assign_add(num(3.0)); }); });
  coordinator.start();
  const auto [plus, minus] =
      coordinator.schedule("sum", num(3.0)).fetch<std::pair<Tensor, Tensor>>();
  EXPECT_EQ(plus.item(), 4.0F * kReplicas);
  EXPECT_EQ(minus.item(), 2.0F * kReplicas);
  for (int i = 0; i < 2; ++i) (void)coordinator.schedule("add");
  coordinator.join();
  EXPECT_EQ(first.value().item(), 6.0F);
}

TEST_F(AsynchronousTraining, WorkerBatchIsSplitAmongItsReplicas) {
  for (const int replicas : {1, 2, 4}) {
    ParameterServerStrategy strategy(with_workers(2, 2, replicas));
    ClusterCoordinator coordinator(strategy);
    coordinator.define("local results", [&](DistributedIterator& iterator) {
      std::vector<Tensor> results;
      for (const Tensor& each :
           strategy.run([](const Batch& batch) { return batch.features(); }, iterator.next())) {
        results.push_back(each);
      }
      return results;
    });
    const auto cut = coordinator.create_per_worker_dataset([&](const InputContext& context) {
      EXPECT_EQ(context.num_input_pipelines, 2);
      return strategy.distribute_dataset(Dataset::range(1, 11).batch(4));
    });
    const auto by_function = coordinator.create_per_worker_dataset([&](const InputContext&) {
      return strategy.distribute_datasets_from_function(
          [](const InputContext&) { return Dataset::range(1, 11).batch(1); });
    });
    coordinator.start();
    const auto lists = [](const Nest& nest) {
      std::vector<std::vector<double>> values;
      for (const Nest& each : *nest.list()) values.push_back(each.tensor()->to_doubles());
      return values;
    };
    std::vector<std::vector<double>> split, single;
    for (int r = 0; r < replicas; ++r) {
      split.emplace_back();
      for (int i = 0; i < 4 / replicas; ++i) split.back().push_back(1 + r * (4 / replicas) + i);
      single.push_back({1.0 + r});
    }
    EXPECT_EQ(lists(coordinator.schedule("local results", cut.iterate()).get()), split);
    EXPECT_EQ(lists(coordinator.schedule("local results", by_function.iterate()).get()), single);
    const auto iterator = cut.iterate();
    const Error error = error_of([&] {
      // If a closure fails before the last one is scheduled, schedule() throws the error.
      for (int i = 0; i < 7; ++i) (void)coordinator.schedule("local results", iterator);
      coordinator.join();
    });
    EXPECT_EQ(error.code(), ErrorCode::kOutOfRange) << "two workers have three batches each";
  }
}

// tf warns: "executed locally on the coordinator. This is inefficient but may be valid".
TEST_F(AsynchronousTraining, WorkOutsideClosureWarnsOnce) {
  using Work = std::function<void(ParameterServerStrategy&)>;
  const auto two = [] { return PerReplica<Tensor>({Tensor::ones({1}), Tensor::ones({1})}); };
  const std::map<std::string, Work> works = {
      {"run", [](auto& strategy) { strategy.run([] {}); }},
      {"reduce", [&](auto& strategy) { (void)strategy.reduce(ReduceOp::kSum, two()); }},
      {"gather", [&](auto& strategy) { (void)strategy.gather(two(), 0); }},
      {"distribute_dataset", [](auto& strategy) {
         DistributedDataset data = strategy.distribute_dataset(Dataset::range(1, 5).batch(2));
         for (const PerReplica<Batch>& batch : data) EXPECT_EQ(batch.size(), 2U);
       }}};
  for (const auto& [call, work] : works) {
    ParameterServerStrategy strategy(with_workers(1, 1, 2));
    const auto do_all = [&] {
      for (const auto& [name, each] : works) each(strategy);
    };
    EXPECT_THAT(warnings_of(do_all), ::testing::IsEmpty()) << "there is no coordinator";
    ClusterCoordinator coordinator(strategy);
    coordinator.define("all", do_all);
    coordinator.start();
    EXPECT_THAT(warnings_of([&] { (void)coordinator.schedule("all").get(); }),
                ::testing::IsEmpty());
    const auto lines = warnings_of([&, &do_first = work] {
      do_first(strategy);
      do_all();
    });
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_THAT(lines[0], ::testing::HasSubstr(concat(": ", call, "() outside a closure")));
  }
}

TEST_F(AsynchronousTraining, CreatingVariableInClosureFails) {
  ParameterServerStrategy strategy(with_workers(1));
  ClusterCoordinator coordinator(strategy);
  coordinator.define("make", [] { return Variable(num(1.0)).value(); });
  coordinator.start();
  (void)coordinator.schedule("make");
  const Error error = error_of([&] { coordinator.join(); });
  EXPECT_THAT(error.message(), ::testing::HasSubstr("created inside run"));
}

TEST_F(AsynchronousTraining, OptimizersTrainServerVariables) {
  ParameterServerOptions options = with_workers(3);
  options.variable_partitioner = FixedShardsPartitioner(2);
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(Tensor::zeros({4, 1}), {.name = "w"}),
                                           Variable(Tensor::zeros({1}), {.name = "b"})};
  Adam optimizer(variables, {.learning_rate = 0.05});
  const Tensor truth = Tensor::from<float>({4, 1}, {1.0F, -2.0F, 0.5F, 3.0F});
  ClusterCoordinator coordinator(strategy);
  coordinator.define("train", [&](std::int64_t batch) {
    const Tensor x =
        random_normal({16, 4}, RandomKey{9, kUserPurpose, static_cast<std::uint64_t>(batch), 0, 0});
    GradientTape tape;
    const Tensor error =
        matmul(x, variables[0].value()) + variables[1].value() - (matmul(x, truth) + 0.25F);
    const Tensor loss = reduce_mean(square(error));
    optimizer.minimize(tape, loss);
    return loss;
  });
  coordinator.start();
  std::vector<RemoteValue> losses;
  for (std::int64_t step = 0; step < 600; ++step) {
    losses.push_back(coordinator.schedule("train", step));
  }
  coordinator.join();
  EXPECT_LT(losses.back().fetch().item(), 0.05F);  // the loss was 14 before training
  EXPECT_EQ(optimizer.iterations().value().item_int(), 600);
}

/// Each step adds to three variables on two servers; workers die in the middle of steps.
TEST_F(AsynchronousTraining, EachStepCountsOnceDespiteKilledWorkers) {
  constexpr int kClosures = 1000, kWorkers = 3;
  ParameterServerStrategy strategy(with_workers(kWorkers));
  const auto scope = strategy.scope();
  Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  Variable rows(Tensor::full({7}, 0.0, DType::kInt64), {.name = "rows"});
  Variable twice(Tensor::scalar(0, DType::kInt64), {.name = "twice"});
  const Tensor one = Tensor::scalar(1, DType::kInt64);
  testing::MortalWorkers workers(strategy);
  ClusterCoordinator coordinator(workers, {.most_attempts = 100});
  coordinator.define("count", [&](std::int64_t number) {
    count.assign_add(one);
    (void)count.value();  // sends the changes made so far
    rows.scatter_add({Tensor::from<std::int64_t>({1}, {1}),
                      Tensor::from<std::int64_t>({1}, {number % 7}), Shape{7}});
    twice.assign_add(one);
    (void)rows.value();
    twice.assign_add(one);
  });
  coordinator.start();
  std::vector<int> killed;
  for (std::int64_t number = 0; number < kClosures; ++number) {
    (void)coordinator.schedule("count", number);
    if (number % 25 != 24) continue;
    const auto victim = static_cast<int>(number / 25 % kWorkers);
    testing::mortal_worker(coordinator, victim).kill();
    testing::mortal_worker(coordinator, victim).restart();
    killed.push_back(victim);
  }
  coordinator.join();
  EXPECT_EQ(killed.size(), 40U);
  EXPECT_EQ(count.value().item_int(), kClosures);
  EXPECT_EQ(twice.value().item_int(), 2 * kClosures);
  const std::vector<double> by_row = numbers(rows.value());
  for (int row = 0; row < 7; ++row) {
    EXPECT_EQ(by_row[static_cast<std::size_t>(row)], (kClosures - row + 6) / 7) << row;
  }
}

}  // namespace tutti::asynchronous_training_tests
