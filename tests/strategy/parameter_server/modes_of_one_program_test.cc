// One program, synchronous and asynchronous by an option; clients that place variables alike.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti {
namespace {

namespace modes_of_one_program_test {

using strategy_tests::expect_no_error;
using strategy_tests::num;
using strategy_tests::on_cpus;

using Stores = std::vector<std::shared_ptr<internal::VariableService>>;

Stores two_stores() {
  return {std::make_shared<internal::VariableStore>("ps 0"),
          std::make_shared<internal::VariableStore>("ps 1")};
}

ParameterServerOptions in_mode(std::string_view mode,
                               VariablePlacement placement = VariablePlacement::kRoundRobin) {
  ParameterServerOptions options;
  options.local = on_cpus(1);
  options.placement = placement;
  options.update_mode = parse_update_mode(mode);
  return options;
}

struct Curve {
  std::vector<double> losses;  // of worker 0
  double weight = 0.0;
  std::int64_t updates = 0;
};

/// Two workers of 20 steps each bring w to 3 by (w - 3)^2 with a rate of 0.1.
Curve trained(std::string_view mode) {
  const testing::HangWatchdog watchdog(std::string(mode), std::chrono::seconds(60));
  const Stores stores = two_stores();
  Curve curve;
  const auto body = [&](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    const std::vector<Variable> variables = {Variable(num(0.0), {.name = "w"})};
    Sgd optimizer(variables, {.learning_rate = 0.1});
    for (int step = 0; step < 20; ++step) {
      const PerReplica<Tensor> loss = strategy.run([&] {
        GradientTape tape;
        const Tensor result = square(variables[0].value() - 3.0f);
        optimizer.minimize(tape, result);
        return result;
      });
      if (strategy.worker() == 0) curve.losses.push_back(loss[0].item());
    }
  };
  expect_no_error(errors_of_ranks(2, [&](int worker) {
    ParameterServerStrategy strategy(worker, 2, stores, in_mode(mode));
    body(strategy);
  }));
  ParameterServerStrategy reader(0, 1, stores, in_mode("async"));
  const auto scope = reader.scope();
  const std::vector<Variable> variables = {Variable(num(0.0), {.name = "w"})};
  const Sgd optimizer(variables, {.learning_rate = 0.1});
  curve.weight = variables[0].value().item();
  curve.updates = optimizer.iterations().value().item_int();
  return curve;
}

}  // namespace modes_of_one_program_test

// Two replicas of one worker read two variables twice each in five steps, and change both.
TEST(ModesOfOneProgram, ValuesAndGradientsAreSentOncePerStep) {
  using namespace modes_of_one_program_test;
  ParameterServerOptions options;
  options.local = on_cpus(2);
  ParameterServerStrategy strategy(std::move(options));
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(Tensor::ones({4}), {.name = "a"}),
                                           Variable(Tensor::ones({4}), {.name = "b"})};
  Sgd optimizer(variables, {.learning_rate = 0.1});
  const auto step = [&] {
    GradientTape tape;
    Tensor sum = num(0.0);
    for (const Variable& variable : variables) {
      sum = sum + reduce_sum(variable.value() * variable.value());
    }
    optimizer.minimize(tape, sum);
  };
  strategy.run(step);
  const ServerStatistics before = strategy.server_statistics().at(0);
  for (int i = 0; i < 5; ++i) strategy.run(step);
  const ServerStatistics after = strategy.server_statistics().at(0);
  // Besides the optimizer's counter of steps, and its rate, which no step changes: the worker is
  // told so, and gets no value.
  EXPECT_EQ(after.num_reads - before.num_reads, 5u * 4u);
  EXPECT_EQ(after.num_reads_unchanged - before.num_reads_unchanged, 5u);
  EXPECT_EQ(after.num_changes - before.num_changes, 5u * 3u);
}

// Synchronous: 20 updates with the sum of two equal gradients 2 * (w - 3), so that w - 3 shrinks
// by 1 - 0.1 * 4 each time. Asynchronous: 40 updates, each of one gradient.
TEST(ModesOfOneProgram, OneOptionSelectsSynchronousSteps) {
  using namespace modes_of_one_program_test;
  const Curve together = trained("sync_replicas");
  EXPECT_EQ(together.updates, 20);
  ASSERT_EQ(together.losses.size(), 20u);
  for (std::size_t step = 0; step < 12; ++step) {  // then float32 is not exact enough
    const double expected = 9.0 * std::pow(0.6, 2.0 * static_cast<double>(step));
    EXPECT_NEAR(together.losses[step], expected, 1e-3 * expected) << step;
  }

  const Curve apart = trained("async");
  EXPECT_EQ(apart.updates, 40);
  EXPECT_LT(apart.losses.back(), 0.1);  // which of the other's updates it has seen is open
  for (const Curve& curve : {together, apart}) EXPECT_NEAR(curve.weight, 3.0, 0.1);
}

TEST(ModesOfOneProgram, ClientsPlaceVariablesAlikeInOrderOfCreation) {
  using namespace modes_of_one_program_test;
  const testing::HangWatchdog watchdog("placements", std::chrono::seconds(60));
  const auto places = [](VariablePlacement placement) {
    const Stores stores = two_stores();
    std::vector<std::vector<int>> of_clients(2);
    expect_no_error(errors_of_ranks(2, [&](int worker) {
      ParameterServerStrategy strategy(worker, 2, stores, in_mode("async", placement));
      const auto scope = strategy.scope();
      for (const std::int64_t size : {1000, 10, 20, 30, 40}) {
        const Variable variable(Tensor::zeros({size}), {.name = concat("v", size)});
        const std::string device = strategy.shards_of(variable).at(0).device;
        of_clients[static_cast<std::size_t>(worker)].push_back(
            device == "/job:ps/replica:0/task:0/device:CPU:0" ? 0 : 1);
      }
    }));
    EXPECT_EQ(of_clients[0], of_clients[1]);
    return of_clients[0];
  };
  EXPECT_EQ(places(VariablePlacement::kRoundRobin), (std::vector<int>{0, 1, 0, 1, 0}));
  EXPECT_EQ(places(VariablePlacement::kLeastBytes), (std::vector<int>{0, 1, 1, 1, 1}));
}

TEST(ModesOfOneProgram, StepsAreSynchronousByDefault) {
  using namespace modes_of_one_program_test;
  EXPECT_EQ(ParameterServerOptions{}.update_mode, UpdateMode::kSync);
  ParameterServerStrategy strategy({.local = on_cpus(2)});
  EXPECT_EQ(strategy.update_mode(), UpdateMode::kSync);
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(num(0.0), {.name = "w"})};
  Sgd optimizer(variables, {.learning_rate = 1.0});
  const PerReplica<Tensor> read = strategy.run([&] {
    GradientTape tape;
    const Tensor value = variables[0].value();
    optimizer.minimize(tape, value * (1.0f + strategy_tests::replica_number()));
    return value;
  });
  // Both read the same values, and one update has the gradients of both: 1 + 2.
  EXPECT_EQ(read[0].item(), 0.0f);
  EXPECT_EQ(read[1].item(), 0.0f);
  EXPECT_EQ(variables[0].value().item(), -3.0f);
  EXPECT_EQ(optimizer.iterations().value().item_int(), 1);
}

}  // namespace
}  // namespace tutti
