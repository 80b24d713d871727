// Tests every optimizer and its options under strategies: equal bits on any devices, exact resume.
// SPDX-License-Identifier: Apache-2.0

#include "tutti/optimizer/optimizers.h"
#include "tests/strategy/strategy_helpers.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/strategy/replica_context.h"

namespace tutti::strategy_tests {
namespace {
/// Network of an embedding and a matrix larger than one block of 4,096.
struct SmallNetwork {
  Variable table{random_normal({40, 30}, RandomKey{5, kUserPurpose, 0, 0, 0}), {.name = "table"}};
  Variable matrix{random_normal({30, 150}, RandomKey{5, kUserPurpose, 1, 0, 0}),
                  {.name = "matrix"}};
  std::vector<Variable> variables() const { return {table, matrix}; }
};

void train_step(Strategy& strategy, const SmallNetwork& network, Optimizer& optimizer, int step) {
  strategy.run([&] {
    ReplicaContext& context = ReplicaContext::current();
    std::vector<std::int64_t> rows;
    for (int i = 0; i < 4; ++i) rows.push_back((step * 7 + context.replica_id() * 3 + i) % 40);
    GradientTape tape;
    const Tensor x =
        gather(network.table.value(), Tensor::from<std::int64_t>({4}, rows, context.device()));
    const Tensor y = matmul(x, network.matrix.value()) / 30.0f;
    optimizer.minimize(tape, reduce_sum(square(y - 1.0f)) / 600.0f);
  });
}

struct TrainedHashes {
  std::string weights, state;
  bool operator==(const TrainedHashes&) const = default;
};

TrainedHashes train_network(Strategy& strategy, const OptimizerSpec& spec, int steps) {
  const auto scope = strategy.scope();
  const SmallNetwork network;
  const auto optimizer = spec.make(network.variables());
  const std::string before = hash_variables(network.variables());
  for (int step = 0; step < steps; ++step) train_step(strategy, network, *optimizer, step);
  const TrainedHashes trained{hash_variables(network.variables()),
                              hash_variables(optimizer->state_variables())};
  EXPECT_NE(trained.weights, before);
  return trained;
}

void expect_same_bits_everywhere(const OptimizerSpec& spec, const std::string& what) {
  for (const int replicas : {2, 3}) {
    const TrainedHashes expected = train_network(*mirrored(replicas), spec, 6);
    EXPECT_EQ(train_network(*mirrored(1, replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*mirrored(2, replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*central(replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*central(1, replicas), spec, 6), expected) << what;
    for (const int stage : {1, 2, 3}) {
      EXPECT_EQ(train_network(*fully_sharded(replicas, 0, stage), spec, 6), expected)
          << what << ", stage " << stage;
    }
  }
  const TrainedHashes alone = train_network(default_strategy(), spec, 6);
  EXPECT_EQ(train_network(*mirrored(1), spec, 6), alone) << what;
  EXPECT_EQ(train_network(*fully_sharded(1), spec, 6), alone) << what;
}

TEST(OptimizersUnderStrategies, EachByNameGivesTheSameBits) {
  for (const std::string& name : optimizer_names()) expect_same_bits_everywhere(name, name);
}

TEST(OptimizersUnderStrategies, OptionsGiveTheSameBits) {
  expect_same_bits_everywhere(SgdOptions{.clipping = {.clipnorm = 0.1}}, "clipnorm");
  expect_same_bits_everywhere(SgdOptions{.clipping = {.clipvalue = 0.01}}, "clipvalue");
  const LambOptions lamb{.weight_decay = 0.1,
                         .clipping = {.global_clipnorm = 0.5},
                         .ema = EmaOptions{.momentum = 0.8, .overwrite_frequency = 2},
                         .dynamic_loss_scale = DynamicLossScaleOptions{.growth_steps = 1},
                         .gradient_accumulation_steps = 2};
  expect_same_bits_everywhere(lamb, "lamb with everything");
  const SgdOptions sgd{.learning_rate = 0.1,
                       .momentum = 0.9,
                       .weight_decay = 0.01,
                       .ema = EmaOptions{},
                       .loss_scale_factor = 3.0,
                       .gradient_accumulation_steps = 3};
  expect_same_bits_everywhere(sgd, "sgd with everything");
}

TEST(OptimizersUnderStrategies, AccumulationSumsOverReplicasAndAveragesOverSteps) {
  for (const StrategyCase& each : all_strategies()) {
    const auto strategy = each.make();
    const auto scope = strategy->scope();
    const int replicas = strategy->num_replicas_in_sync();
    Variable w(Tensor::zeros({2}), {.name = "w"});
    Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 2});
    std::vector<double> first_weight;
    double expected = 0.0;
    for (int step = 0; step < 6; ++step) {
      strategy->run([&] {
        const float g =
            static_cast<float>((step + 1) * (ReplicaContext::current().replica_id() + 1));
        const std::vector<Gradient> gradients = {vec({g, 1.0f})};
        sgd.apply_gradients(gradients);
      });
      const double sum_of_replicas = replicas * (replicas + 1) / 2.0;
      if (step % 2 == 1) expected -= (step + step + 1) / 2.0 * sum_of_replicas;
      EXPECT_EQ(numbers(w.value()),
                (std::vector<double>{expected, -(step + 1) / 2 * 1.0 * replicas}))
          << each.name << " step " << step;
    }
  }
}

TEST(OptimizersUnderStrategies, ACheckpointInTheMiddleOfAnAccumulationIsExact) {
  const AdamOptions options{.ema = EmaOptions{},
                            .dynamic_loss_scale = DynamicLossScaleOptions{.growth_steps = 1},
                            .gradient_accumulation_steps = 3};
  const auto all = [](const SmallNetwork& network, const Optimizer& optimizer) {
    std::vector<Variable> variables = network.variables();
    for (const Variable& each : optimizer.state_variables()) variables.push_back(each);
    return variables;
  };
  for (const StrategyCase& each : all_strategies()) {
    const auto strategy = each.make();
    const auto scope = strategy->scope();
    const SmallNetwork whole, resumed;
    Adam of_whole(whole.variables(), options), of_resumed(resumed.variables(), options);
    for (int step = 0; step < 5; ++step) train_step(*strategy, whole, of_whole, step);
    std::vector<NamedTensor> saved;
    for (const Variable& variable : all(whole, of_whole)) {
      for (const NamedTensor& part : variable.storage().save()) saved.push_back(part);
    }
    for (const Variable& variable : all(resumed, of_resumed)) {
      variable.storage().restore(lookup_in(saved));
    }
    for (int step = 5; step < 9; ++step) {
      train_step(*strategy, whole, of_whole, step);
      train_step(*strategy, resumed, of_resumed, step);
    }
    EXPECT_EQ(hash_variables(all(whole, of_whole)), hash_variables(all(resumed, of_resumed)))
        << each.name;
    EXPECT_EQ(of_whole.iterations().value().item_int(), 3) << each.name;
  }
}

TEST(OptimizersUnderStrategies, AFailedStepHoldsNothingBack) {
  const auto strategy = mirrored(2);
  const auto scope = strategy->scope();
  Variable w(Tensor::zeros({1}), {.name = "w"});
  Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 3});
  const auto step = [&](bool fails) {
    strategy->run([&] {
      if (fails && ReplicaContext::current().replica_id() == 1) {
        throw Error(ErrorCode::kUnavailable, "no data");
      }
      const std::vector<Gradient> gradients = {vec({1.0f})};
      sgd.apply_gradients(gradients);
    });
  };
  step(false);
  EXPECT_ERROR(step(true), kUnavailable, "no data");
  step(false);
  EXPECT_EQ(numbers(w.value()), (std::vector<double>{0.0}));
  step(false);
  EXPECT_EQ(numbers(w.value()), (std::vector<double>{-2.0}));
}

TEST(OptimizersUnderStrategies, MovingAveragesReachEveryCopy) {
  const auto strategy = mirrored(3);
  const auto scope = strategy->scope();
  Variable w(Tensor::zeros({1}), {.name = "w"});
  Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .ema = EmaOptions{.momentum = 0.5}});
  for (int step = 0; step < 2; ++step) {
    strategy->run([&] {
      const std::vector<Gradient> gradients = {vec({1.0f})};
      sgd.apply_gradients(gradients);
    });
  }
  EXPECT_EQ(components(w), copies_of(-6.0, 3));
  sgd.finalize_variable_values();
  EXPECT_EQ(components(w), copies_of(-4.5, 3));
}

/// Corresponds to tf's apply() in a replica: averages move once, by the mean of the replicas'
/// values.
TEST(MovingAverages, ApplyWithinAReplicaMovesOnceByTheMeanOverReplicas) {
  for (const StrategyCase& each : all_strategies()) {
    SCOPED_TRACE(each.name);
    const auto strategy = each.make();
    const auto scope = strategy->scope();
    Variable w(Tensor{4.0f, -2.0f}, {.name = "w"});
    Variable seen = on_read(Tensor(0.0f), VariableAggregation::kMean, "seen");
    ExponentialMovingAverage averages({.decay = 0.75});
    averages.track(std::vector{w, seen});
    averages.track_number("loss");
    w.assign(Tensor{8.0f, 2.0f});
    const auto losses = strategy->run([&] {
      seen.assign(num(4.0 * (replica_number() + 1.0)));
      averages.apply();
      averages.apply(8);  // decay 0.5
      return num(averages.apply_number("loss", 8.0 * replica_number()));
    });
    const int n = strategy->num_replicas_in_sync();
    for (const Tensor& copy : averages.average("w").storage().local_components()) {
      EXPECT_EQ(numbers(copy), (std::vector<double>{6.5, 0.5}));
    }
    // Starts at 0.25, then moves half of the way to 4, 8, ..., 4n.
    EXPECT_EQ(numbers(averages.average("seen").value())[0], 0.625 * 2.0 * (n + 1));
    EXPECT_EQ(numbers(losses), copies_of(n - 1.0, n));  // a quarter of the mean of 0, 8, ...
  }
}

}  // namespace
}  // namespace tutti::strategy_tests
