// Tests every optimizer and its options under strategies: results whose bits do not depend on
// devices, exact resumption, and loss scales.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizers.h"

#include <limits>

#include "tests/strategy/toy_training.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/strategy/replica_context.h"

namespace tutti::strategy_tests::optimizers_test {
/// Network with an embedding and a matrix. The matrix has more elements than one block of the
/// canonical sum (4,096 floats).
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

Trained train_network(Strategy& strategy, const OptimizerSpec& spec, int steps) {
  const auto scope = strategy.scope();
  const SmallNetwork network;
  const auto optimizer = spec.make(network.variables());
  const std::string before = hash_variables(network.variables());
  for (int step = 0; step < steps; ++step) train_step(strategy, network, *optimizer, step);
  const Trained trained{hash_variables(network.variables()),
                        hash_variables(optimizer->state_variables()), ""};
  EXPECT_NE(trained.weights, before);
  return trained;
}

void expect_same_bits_everywhere(const OptimizerSpec& spec, const std::string& what) {
  for (const int replicas : {2, 3}) {
    const Trained expected = train_network(*mirrored(replicas), spec, 6);
    EXPECT_EQ(train_network(*mirrored(1, replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*mirrored(2, replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*central(replicas), spec, 6), expected) << what;
    EXPECT_EQ(train_network(*central(1, replicas), spec, 6), expected) << what;
    for (const int stage : {1, 2, 3}) {
      EXPECT_EQ(train_network(*fully_sharded(replicas, 0, stage), spec, 6), expected)
          << what << ", stage " << stage;
    }
  }
  const Trained alone = train_network(default_strategy(), spec, 6);
  EXPECT_EQ(train_network(*mirrored(1), spec, 6), alone) << what;
  EXPECT_EQ(train_network(*fully_sharded(1), spec, 6), alone) << what;
}

TEST(OptimizersUnderStrategies, EveryOptimizerGivesSameBitsUnderEveryStrategy) {
  for (const std::string& name : optimizer_names()) expect_same_bits_everywhere(name, name);
}

TEST(OptimizersUnderStrategies, EveryOptionGivesSameBitsUnderEveryStrategy) {
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

using OptimizersOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, OptimizersOnEveryStrategy, ::testing::ValuesIn(all_strategies()),
                         case_name);

TEST_P(OptimizersOnEveryStrategy, AccumulationSumsOverReplicasAndAveragesOverSteps) {
  const auto scope = strategy_->scope();
  Variable w(Tensor::zeros({2}), {.name = "w"});
  Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 2});
  double expected = 0.0;
  for (int step = 0; step < 6; ++step) {
    strategy_->run([&] {
      const float g = static_cast<float>((step + 1) * (ReplicaContext::current().replica_id() + 1));
      sgd.apply_gradients(std::vector{Gradient(vec({g, 1.0f}))});
    });
    const double sum_of_replicas = replicas() * (replicas() + 1) / 2.0;
    if (step % 2 == 1) expected -= (step + step + 1) / 2.0 * sum_of_replicas;
    EXPECT_EQ(numbers(w.value()),
              (std::vector<double>{expected, -(step + 1) / 2 * 1.0 * replicas()}))
        << "step " << step;
  }
}

TEST_P(OptimizersOnEveryStrategy, CheckpointDuringGradientAccumulationResumesExactly) {
  const AdamOptions options{.ema = EmaOptions{},
                            .dynamic_loss_scale = DynamicLossScaleOptions{.growth_steps = 1},
                            .gradient_accumulation_steps = 3};
  const auto all = [](const SmallNetwork& network, const Optimizer& optimizer) {
    std::vector<Variable> variables = network.variables();
    for (const Variable& each : optimizer.state_variables()) variables.push_back(each);
    return variables;
  };
  const auto scope = strategy_->scope();
  const SmallNetwork whole, resumed;
  Adam of_whole(whole.variables(), options), of_resumed(resumed.variables(), options);
  for (int step = 0; step < 5; ++step) train_step(*strategy_, whole, of_whole, step);
  std::vector<NamedTensor> saved;
  for (const Variable& variable : all(whole, of_whole)) {
    for (const NamedTensor& part : variable.storage().save()) saved.push_back(part);
  }
  for (const Variable& variable : all(resumed, of_resumed)) {
    variable.storage().restore(lookup_in(saved));
  }
  for (int step = 5; step < 9; ++step) {
    train_step(*strategy_, whole, of_whole, step);
    train_step(*strategy_, resumed, of_resumed, step);
  }
  EXPECT_EQ(hash_variables(all(whole, of_whole)), hash_variables(all(resumed, of_resumed)));
  EXPECT_EQ(of_whole.iterations().value().item_int(), 3);
}

TEST(OptimizersUnderStrategies, FailedStepDoesNotAccumulateGradients) {
  const auto strategy = mirrored(2);
  const auto scope = strategy->scope();
  Variable w(Tensor::zeros({1}), {.name = "w"});
  Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 3});
  const auto step = [&](bool fails) {
    strategy->run([&] {
      if (fails && ReplicaContext::current().replica_id() == 1) {
        throw Error(ErrorCode::kUnavailable, "no data");
      }
      sgd.apply_gradients(std::vector{Gradient(vec({1.0f}))});
    });
  };
  step(false);
  EXPECT_ERROR(step(true), kUnavailable, "no data");
  step(false);
  EXPECT_EQ(numbers(w.value()), (std::vector<double>{0.0}));
  step(false);
  EXPECT_EQ(numbers(w.value()), (std::vector<double>{-2.0}));
}

TEST(OptimizersUnderStrategies, MovingAveragesAreAssignedToEveryComponent) {
  const auto strategy = mirrored(3);
  const auto scope = strategy->scope();
  Variable w(Tensor::zeros({1}), {.name = "w"});
  Sgd sgd(std::vector{w}, {.learning_rate = 1.0, .ema = EmaOptions{.momentum = 0.5}});
  for (int step = 0; step < 2; ++step) {
    strategy->run([&] { sgd.apply_gradients(std::vector{Gradient(vec({1.0f}))}); });
  }
  EXPECT_EQ(components(w), copies_of(-6.0, 3));
  sgd.finalize_variable_values();
  EXPECT_EQ(components(w), copies_of(-4.5, 3));
}

/// Corresponds to tf's ExponentialMovingAverage.apply() in a replica: each average is updated once,
/// with the mean of the replicas' values.
TEST_P(OptimizersOnEveryStrategy, MovingAverageInReplicaUsesMeanOverReplicas) {
  const auto scope = strategy_->scope();
  Variable w(Tensor{4.0f, -2.0f}, {.name = "w"});
  Variable seen = on_read(Tensor(0.0f), VariableAggregation::kMean, "seen");
  ExponentialMovingAverage averages({.decay = 0.75});
  averages.track(std::vector{w, seen});
  averages.track_number("loss");
  w.assign(Tensor{8.0f, 2.0f});
  const auto losses = strategy_->run([&] {
    seen.assign(num(4.0 * (replica_number() + 1.0)));
    averages.apply();
    averages.apply(8);  // the decay is (1 + 8) / (10 + 8) = 0.5
    return num(averages.apply_number("loss", 8.0 * replica_number()));
  });
  const int n = replicas();
  for (const Tensor& copy : averages.average("w").storage().local_components()) {
    EXPECT_EQ(numbers(copy), (std::vector<double>{6.5, 0.5}));
  }
  // The average starts at a quarter of the mean of 4, 8, ..., 4n, then moves halfway to that mean.
  EXPECT_EQ(numbers(averages.average("seen").value())[0], 0.625 * 2.0 * (n + 1));
  // The result is a quarter of the mean of 0, 8, ..., 8(n - 1).
  EXPECT_EQ(numbers(losses), copies_of(n - 1.0, n));
}

const double kMaxFloat = std::numeric_limits<float>::max();

/// Returns the loss scale after each step of `steps`: in step 'g' all gradients are finite, in step
/// 'b' replica 0 has a NaN.
std::vector<double> scales(Strategy& strategy, const DynamicLossScaleOptions& options,
                           const std::string& steps) {
  const auto scope = strategy.scope();
  Variable w(Tensor::ones({2}), {.name = "w"});
  Variable unused(Tensor::ones({1}), {.name = "unused"});
  Sgd optimizer(std::vector{w, unused}, {.dynamic_loss_scale = options});
  std::vector<double> result;
  for (const char step : steps) {
    const auto seen = strategy.run([&] {
      const bool bad = step == 'b' && ReplicaContext::current().replica_id() == 0;
      const std::vector<Gradient> gradients = {
          vec({bad ? std::numeric_limits<float>::quiet_NaN() : 0.0f, 1.0f}), Gradient()};
      optimizer.apply_gradients(gradients);
      return num(optimizer.loss_scale());
    });
    result.push_back(optimizer.loss_scale());
    for (const double each : numbers(seen)) EXPECT_EQ(each, result.back());
  }
  return result;
}

TEST(DynamicLossScale, GrowsAfterFiniteStepsAndShrinksAfterOverflow) {
  const double s = kMaxFloat / 4;
  struct Case {
    DynamicLossScaleOptions options;
    std::string steps;
    std::vector<double> expected;
  };
  for (const auto& [options, steps, expected] :
       {Case{{.initial_scale = 1, .growth_steps = 2}, "gggggg", {1, 2, 2, 4, 4, 8}},
        Case{{.initial_scale = s, .growth_steps = 2},  // the scale never becomes infinite
             "gggggg",
             {s, 2 * s, 2 * s, kMaxFloat, kMaxFloat, kMaxFloat}},
        Case{{.initial_scale = 1024, .growth_steps = 2}, "bbbbbb", {512, 256, 128, 64, 32, 16}},
        Case{{.initial_scale = 16, .growth_steps = 2}, "bbbbbb", {8, 4, 2, 1, 1, 1}},
        Case{{.initial_scale = 1, .growth_steps = 1}, "gggbgg", {2, 4, 8, 4, 8, 16}},
        Case{{.initial_scale = 1, .growth_steps = 1}, "gbgbgb", {2, 1, 2, 1, 2, 1}},
        // A step with a NaN restarts the growth period.
        Case{{.initial_scale = 32, .growth_steps = 2}, "gbgbgbg", {32, 16, 16, 8, 8, 4, 4}},
        Case{{.initial_scale = 4, .growth_steps = 2, .multiplier = 3},
             "ggbgg",
             {4, 12, 4, 4, 12}}}) {
    SCOPED_TRACE(concat("from ", options.initial_scale, ": ", steps));
    EXPECT_EQ(scales(default_strategy(), options, steps), expected);
    for (const StrategyCase& each : all_strategies()) {
      EXPECT_EQ(scales(*each.make(), options, steps), expected) << each.name;
    }
  }
}

TEST_P(OptimizersOnEveryStrategy, NonFiniteGradientOnOneReplicaSkipsUpdateEverywhere) {
  for (const auto aggregation : {GradientAggregation::kSum, GradientAggregation::kNone}) {
    const auto scope = strategy_->scope();
    Variable w(Tensor::ones({2}), {.name = "w"});
    Variable without(Tensor::ones({1}), {.name = "without_gradient"});
    Adam optimizer(std::vector{w, without},
                   {.dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8}});
    const std::string before = hash_variables(std::vector{w, without});
    const auto read = strategy_->run([&] {
      // Only replica 0's gradient is not finite.
      const bool first = ReplicaContext::current().replica_id() == 0;
      const float value = first ? std::numeric_limits<float>::infinity() : -1.0f;
      optimizer.apply_gradients(std::vector{Gradient(vec({1.0f, value})), Gradient()},
                                {.aggregation = aggregation});
      return w.value();
    });
    EXPECT_EQ(hash_variables(std::vector{w, without}), before);
    EXPECT_EQ(optimizer.iterations().value().item_int(), 0);
    for (const Variable& state : optimizer.state_variables()) {
      if (state.name() != "adam/dynamic_scale") continue;
      for (const double scale : components(state)) EXPECT_EQ(scale, 4.0);
    }
    for (const double value : numbers(read)) EXPECT_EQ(value, 1.0);
  }
}

TEST_P(OptimizersOnEveryStrategy, MinimizeScalesLossAndUnscalesGradients) {
  // Scales are powers of 2, so scaling does not change the bits.
  const auto train = [](Strategy& strategy, std::optional<DynamicLossScaleOptions> scale) {
    const auto scope = strategy.scope();
    Variable w(Tensor::from<float>({3}, {0.1f, -0.2f, 0.3f}), {.name = "w"});
    Sgd optimizer(std::vector{w}, {.learning_rate = 0.01,
                                   .momentum = 0.9,
                                   .clipping = {.clipnorm = 1.0},
                                   .dynamic_loss_scale = scale});
    for (int step = 0; step < 6; ++step) {
      strategy.run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(w.value() - (replica_number() + 1.0f))));
      });
    }
    return hash_variables(std::vector{w});
  };
  EXPECT_EQ(train(*strategy_, std::nullopt),
            train(*strategy_, DynamicLossScaleOptions{.initial_scale = 1024, .growth_steps = 2}));
}

}  // namespace tutti::strategy_tests::optimizers_test
