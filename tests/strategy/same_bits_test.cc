// Tests that weights are bit-identical, no matter which strategy, devices and schedule are used.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/strategy/toy_training.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/variables/sharded_variable.h"

namespace tutti::strategy_tests::same_bits_test {
using Maker = std::function<std::unique_ptr<Strategy>()>;

void expect_same(const std::map<std::string, Maker>& makers) {
  std::optional<Trained> first;
  for (const auto& [name, make] : makers) {
    const auto strategy = make();
    const Trained trained = train(*strategy);
    if (!first) first = trained;
    EXPECT_EQ(trained, *first) << name;
  }
}

std::unique_ptr<Strategy> mirrored_with(int devices, int replicas, ReplicaExecution execution,
                                        const std::string& ops) {
  LocalStrategyOptions options = on_cpus(devices, replicas);
  options.execution = execution;
  options.cross_device_ops = make_cross_device_ops(ops);
  return std::make_unique<MirroredStrategy>(options);
}

TEST(SameBits, SingleReplicaGivesSameBitsUnderEveryStrategy) {
  expect_same({{"one_device", [] { return std::make_unique<OneDeviceStrategy>("cpu:0"); }},
               {"one_device cpu:3", [] { return std::make_unique<OneDeviceStrategy>("cpu:3"); }},
               {"mirrored", [] { return mirrored(1); }},
               {"central", [] { return central(1); }},
               {"fully sharded", [] { return fully_sharded(1); }},
               {"sequential",
                [] { return mirrored_with(1, 1, ReplicaExecution::kSequential, "canonical"); }}});
}

TEST(SameBits, DefaultStrategyMatchesSingleReplicaBitForBit) {
  const auto strategy = mirrored(1);
  EXPECT_EQ(train(default_strategy()).weights, train(*strategy).weights);
}

TEST(SameBits, ResultIsIndependentOfDevicesAndSchedule) {
  for (const int replicas : {2, 3, 4}) {
    const auto threads = ReplicaExecution::kThreads;
    expect_same(
        {{"a device each", [=] { return mirrored(replicas); }},
         {"one device", [=] { return mirrored(1, replicas); }},
         {"two devices", [=] { return mirrored(2, replicas); }},
         {"central", [=] { return central(replicas); }},
         {"central on one device", [=] { return central(1, replicas); }},
         {"fully sharded", [=] { return fully_sharded(replicas); }},
         {"fully sharded on two devices, stage 2", [=] { return fully_sharded(2, replicas, 2); }},
         {"fully sharded on one device, stage 1", [=] { return fully_sharded(1, replicas, 1); }},
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

TEST(SameBits, DifferentStepCountsGiveDifferentBits) {
  const auto strategy = mirrored(2);
  EXPECT_NE(train(*strategy, 3).weights, train(*strategy, 4).weights);
}

TEST(SameBits, GradientsAreSummedUnlessAggregationIsNone) {
  // Returns each replica's value after one step in which the two replicas have gradients 1 and 2.
  const auto after_step = [](GradientAggregation aggregation,
                             VariableSynchronization synchronization) {
    auto strategy = mirrored(2);
    const auto scope = strategy->scope();
    Variable v(Tensor::zeros({2}), {.name = "v",
                                    .trainable = true,
                                    .synchronization = synchronization,
                                    .aggregation = VariableAggregation::kMean});
    Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.1});
    const auto read = strategy->run([&] {
      const float g = replica_number() + 1;
      optimizer.apply_gradients(std::vector<Gradient>{vec({g, g})}, {.aggregation = aggregation});
      return v.value();
    });
    EXPECT_EQ(optimizer.iterations().value().item_int(), 1);
    return numbers(read);
  };
  const auto are = [](std::vector<double> values) {
    return ::testing::Pointwise(::testing::DoubleNear(1e-7), values);
  };
  EXPECT_THAT(after_step(GradientAggregation::kSum, VariableSynchronization::kOnWrite),
              are({-0.3, -0.3, -0.3, -0.3}));
  // Each replica keeps a separate value, as in local SGD.
  EXPECT_THAT(after_step(GradientAggregation::kNone, VariableSynchronization::kOnRead),
              are({-0.1, -0.1, -0.2, -0.2}));
}

/// Returns each replica's value of a variable that starts at 0, after one step with
/// `gradient(replica)`, learning rate 0.1 and GradientAggregation::kNone.
std::vector<double> after_unsummed(Strategy& strategy,
                                   const std::function<Gradient(float replica)>& gradient,
                                   bool in_parts = false) {
  const auto scope = strategy.scope();
  Variable v(Tensor::zeros({1}), {.name = "v"});
  if (in_parts) v = ShardedVariable({v}, "v");
  Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.1});
  return numbers(strategy.run([&] {
    optimizer.apply_gradients(std::vector{gradient(replica_number())},
                              {.aggregation = GradientAggregation::kNone});
    return v.value();
  }));
}

/// kNone corresponds to tf's experimental_aggregate_gradients=False and
/// skip_gradients_aggregation=True.
TEST(SameBits, UnsummedGradientsOfSharedValueMustBeEqual) {
  const auto own = [](float replica) { return Gradient(vec({replica + 1})); };
  const auto sparse = [](float replica) {
    return Gradient(IndexedSlices{vec({replica}), Tensor::from<std::int64_t>({1}, {0}), {1}});
  };
  const auto equal = [](float) { return Gradient(vec({2})); };
  const std::map<std::string, Maker> shared = {
      {"central", [] { return central(3); }},
      {"central, one device", [] { return central(1, 3); }},
      {"mirrored, one device", [] { return mirrored(1, 3); }},
      {"fully sharded", [] { return fully_sharded(3); }},
      {"fully sharded, stage 1", [] { return fully_sharded(3, 0, 1); }},
      {"parameter_server", [] { return parameter_server(3); }}};
  for (const auto& each : shared) {
    SCOPED_TRACE(each.first);
    const Maker& make = each.second;
    for (const double value : after_unsummed(*make(), equal)) EXPECT_NEAR(value, -0.2, 1e-7);
    EXPECT_INVALID(after_unsummed(*make(), own), "Variable 'v': replicas 0 and 1 share its value");
    EXPECT_INVALID(after_unsummed(*make(), sparse), "use GradientAggregation::kSum");
    EXPECT_INVALID(after_unsummed(*make(), own, /*in_parts=*/true),
                   "replicas 0 and 1 share its value");
  }
  EXPECT_INVALID(after_unsummed(*mirrored(2, 4), own), "replicas 0 and 1 share its value");
}

TEST(SameBits, ErrorNamesReplicasWithDivergingUnsummedGradients) {
  const auto equal = [](float) { return Gradient(vec({2})); };
  for (const double value : after_unsummed(*mirrored(3), equal)) EXPECT_NEAR(value, -0.2, 1e-7);
  OneDeviceStrategy one("cpu:0");
  EXPECT_NEAR(after_unsummed(one, equal)[0], -0.2, 1e-7);
  const auto last_differs = [](float replica) {
    return Gradient(vec({replica < 2 ? 1.0f : 3.0f}));
  };
  EXPECT_INVALID(after_unsummed(*mirrored(3), last_differs),
                 "Variable 'v': replicas 0 and 2 have copies of its value");
  EXPECT_INVALID(after_unsummed(*mirrored(2, 4), last_differs), "use GradientAggregation::kSum");
}

TEST(SameBits, DifferingUnsummedGradientsLeaveVariablesUnchanged) {
  const auto strategy = central(2);
  const auto scope = strategy->scope();
  const std::vector<Variable> variables = {Variable(num(1.0), {.name = "a"}),
                                           Variable(num(1.0), {.name = "b"})};
  Adam optimizer(variables);
  EXPECT_INVALID(strategy->run([&] {
    const std::vector<Gradient> gradients = {num(1.0), num(replica_number())};
    optimizer.apply_gradients(gradients, {.aggregation = GradientAggregation::kNone});
  }),
                 "Variable 'b'");
  EXPECT_EQ(variables[0].value().item(), 1.0f);
  strategy->run([&] {
    optimizer.apply_gradients(std::vector<Gradient>{num(1.0), num(1.0)},
                              {.aggregation = GradientAggregation::kNone});
  });
  EXPECT_LT(variables[0].value().item(), 1.0f);
}

TEST(SameBits, ReplicasMustPassUnsummedGradientsOfSameVariables) {
  const auto strategy = central(2);
  const auto scope = strategy->scope();
  const std::vector<Variable> variables = {Variable(num(1.0), {.name = "a"}),
                                           Variable(num(1.0), {.name = "b"})};
  Sgd both(variables), one(std::vector{variables[0]});
  EXPECT_INVALID(strategy->run([&] {
    const bool is_first = ReplicaContext::current().replica_id() == 0;
    const std::vector<Gradient> gradients(is_first ? 2 : 1, num(1.0));
    (is_first ? both : one).apply_gradients(gradients, {.aggregation = GradientAggregation::kNone});
  }),
                 "gradients that are not summed");
}

TEST(SameBits, TwoOptimizersInOneStepGiveSameBits) {
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

}  // namespace tutti::strategy_tests::same_bits_test
