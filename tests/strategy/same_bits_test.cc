// The same weights, bit by bit, whatever the strategy, the devices and the schedule.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <map>

#include "tests/strategy/toy_training.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::strategy_tests {
namespace {

using Maker = std::function<std::unique_ptr<Strategy>()>;

void expect_same(const std::map<std::string, Maker>& makers) {
  std::optional<Trained> first;
  for (const auto& [name, make] : makers) {
    testing::HangWatchdog watchdog(name);
    const auto strategy = make();
    const Trained trained = train(*strategy);
    if (!first) first = trained;
    EXPECT_EQ(trained.weights, first->weights) << name;
    EXPECT_EQ(trained.slots, first->slots) << name;
    EXPECT_EQ(trained.losses, first->losses) << name;
  }
}

std::unique_ptr<Strategy> mirrored_with(int devices, int replicas, ReplicaExecution execution,
                                        const std::string& ops) {
  LocalStrategyOptions options = on_cpus(devices, replicas);
  options.execution = execution;
  options.cross_device_ops = make_cross_device_ops(ops);
  return std::make_unique<MirroredStrategy>(options);
}

TEST(SameBits, OneReplicaIsTheSameUnderEveryStrategy) {
  expect_same({{"one_device", [] { return std::make_unique<OneDeviceStrategy>("cpu:0"); }},
               {"one_device cpu:3", [] { return std::make_unique<OneDeviceStrategy>("cpu:3"); }},
               {"mirrored", [] { return mirrored(1); }},
               {"central", [] { return central(1); }},
               {"sequential",
                [] { return mirrored_with(1, 1, ReplicaExecution::kSequential, "canonical"); }}});
}

TEST(SameBits, TheDefaultStrategyIsOneReplicaToo) {
  const auto strategy = mirrored(1);
  EXPECT_EQ(train(default_strategy()).weights, train(*strategy).weights);
}

TEST(SameBits, GRD_09_S2_36_TrainingUnderAnyStrategyIsThatOnOneDevice) {
  const auto train_line = [](Strategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(Tensor::from<float>({3, 1}, {0.1f, -0.2f, 0.3f}), {.name = "w"});
    Variable b(Tensor::zeros({1}), {.name = "b"});
    Sgd optimizer(std::vector<Variable>{w, b}, {.learning_rate = 0.1, .momentum = 0.9});
    const Tensor x = random_normal({24, 3}, RandomKey{5, kUserPurpose, 0, 0, 0});
    const std::int64_t rows = 24 / strategy.num_replicas_in_sync();
    for (int epoch = 0; epoch < 200; ++epoch) {
      strategy.run([&] {
        ReplicaContext& context = ReplicaContext::current();
        const Tensor mine = x.detached_rows(context.replica_id() * rows, rows).to(context.device());
        GradientTape tape;
        const Tensor target = reduce_sum(mine, {{1}, true});
        const Tensor loss =
            reduce_sum(square(matmul(mine, w.value()) + b.value() - target)) / 24.0f;
        optimizer.minimize(tape, loss);
      });
    }
    std::vector<double> weights = numbers(w.value());
    weights.push_back(b.value().item());
    return weights;
  };
  const std::vector<double> expected = train_line(default_strategy());
  for (const double each : {expected[0], expected[1], expected[2]}) EXPECT_NEAR(each, 1.0, 0.05);
  for (const StrategyCase& each : all_strategies()) {
    testing::HangWatchdog watchdog(each.name);
    const std::vector<double> weights = train_line(*each.make());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(weights[i], expected[i], 1e-3) << each.name;
    }
  }
}

TEST(SameBits, ReplicasMatterAndDevicesDoNot) {
  for (const int replicas : {2, 3, 4}) {
    const auto threads = ReplicaExecution::kThreads;
    expect_same(
        {{"a device each", [=] { return mirrored(replicas); }},
         {"one device", [=] { return mirrored(1, replicas); }},
         {"two devices", [=] { return mirrored(2, replicas); }},
         {"central", [=] { return central(replicas); }},
         {"central on one device", [=] { return central(1, replicas); }},
         {"parameter server", [=] { return parameter_server(replicas); }},
         {"parameter server, in shards", [=] { return parameter_server(1, replicas, 3); }},
         {"sequential",
          [=] { return mirrored_with(2, replicas, ReplicaExecution::kSequential, "canonical"); }},
         {"hierarchical_copy",
          [=] { return mirrored_with(replicas, replicas, threads, "hierarchical_copy"); }},
         {"reduction_to_one_device",
          [=] { return mirrored_with(replicas, replicas, threads, "reduction_to_one_device"); }}});
  }
}

TEST(SameBits, OtherStepsGiveOtherBits) {
  const auto strategy = mirrored(2);
  EXPECT_NE(train(*strategy, 3).weights, train(*strategy, 4).weights);
}

TEST(SameBits, S2_04_MirroredComponentsStayEqual) {
  auto strategy = mirrored(3);
  const auto scope = strategy->scope();
  Variable w(random_normal({1'000}, RandomKey{3, kUserPurpose, 0, 0, 0}), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1, .momentum = 0.9});
  for (int step = 0; step < 5; ++step) {
    strategy->run([&] {
      GradientTape tape;
      const Tensor loss = reduce_sum(square(w.value() - replica_number()));
      optimizer.minimize(tape, loss);
    });
    const auto parts = w.storage().local_components();
    for (const Tensor& each : parts) {
      EXPECT_TRUE(std::ranges::equal(each.bytes(), parts[0].bytes()));
    }
  }
}

TEST(SameBits, S2_32_GRD_03_GradientsAreSummedAndMayBeLocal) {
  auto strategy = mirrored(2);
  const auto scope = strategy->scope();
  Variable v(Tensor::zeros({2}), {.name = "v"});
  Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.1});
  const auto read = strategy->run([&] {
    const float g = replica_number() + 1;
    const std::vector<Gradient> gradients = {vec({g, g})};
    optimizer.apply_gradients(gradients);
    return v.value();
  });
  for (const double each : numbers(read)) EXPECT_FLOAT_EQ(static_cast<float>(each), -0.3f);
}

TEST(SameBits, GRD_05_OneDeviceWithEitherAggregation) {
  for (const auto aggregation : {GradientAggregation::kSum, GradientAggregation::kNone}) {
    OneDeviceStrategy strategy("cpu:0");
    const auto scope = strategy.scope();
    Variable v(Tensor::zeros({2}), {.name = "v"});
    Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.1});
    strategy.run([&] {
      const std::vector<Gradient> gradients = {vec({1, 1})};
      optimizer.apply_gradients(gradients, {.aggregation = aggregation});
    });
    EXPECT_FLOAT_EQ(static_cast<float>(numbers(v.value())[0]), -0.1f);
  }
}

TEST(SameBits, GRD_01_GradientsOfTheReplicasRows) {
  auto strategy = mirrored(2);
  for (const auto& [x, expected] :
       {std::pair(PerReplica<float>({5, 6}), std::vector<double>{10, 12}),
        std::pair(PerReplica<float>({7, 8}), std::vector<double>{14, 16})}) {
    const auto gradients = strategy->run(
        [](float value) {
          const Tensor input = num(value);
          GradientTape tape;
          tape.watch(input);
          return tape.gradient(square(input), input).dense();
        },
        x);
    EXPECT_EQ(numbers(gradients), expected);
  }
}

TEST(SameBits, TwoOptimizersInOneStep) {
  std::map<std::string, std::string> hashes;
  for (const int devices : {1, 2}) {
    auto strategy = mirrored(devices, 2);
    const auto scope = strategy->scope();
    Variable a(Tensor::ones({40}), {.name = "a"});
    Variable b(Tensor::ones({30}), {.name = "b"});
    Sgd first(std::vector<Variable>{a}, {.learning_rate = 0.1});
    Adam second(std::vector<Variable>{b}, {.learning_rate = 0.1});
    for (int step = 0; step < 3; ++step) {
      strategy->run([&] {
        GradientTape tape({.persistent = true});
        const Tensor loss = reduce_sum(square(a.value())) * reduce_mean(b.value());
        first.minimize(tape, loss);
        second.minimize(tape, loss);
      });
    }
    hashes[hash_variables(std::vector<Variable>{a, b})] = "";
  }
  EXPECT_EQ(hashes.size(), 1U);
}

}  // namespace
}  // namespace tutti::strategy_tests
