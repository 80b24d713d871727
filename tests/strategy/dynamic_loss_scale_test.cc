// Tests dynamic loss scaling under strategies: all replicas make one decision.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/replica_context.h"

namespace tutti::strategy_tests {
namespace {
const double kMaxFloat = std::numeric_limits<float>::max();

/// Returns the scale after each step: 'g' has finite gradients on all replicas, 'b' a NaN on
/// replica 0.
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

TEST(DynamicLossScale, GrowsAfterAPeriodOfFiniteStepsAndFallsWithEachOther) {
  const double s = kMaxFloat / 4;
  struct Case {
    DynamicLossScaleOptions options;
    std::string steps;
    std::vector<double> expected;
  };
  for (const auto& [options, steps, expected] :
       {Case{{.initial_scale = 1, .growth_steps = 2}, "gggggg", {1, 2, 2, 4, 4, 8}},
        Case{{.initial_scale = s, .growth_steps = 2},  // never becomes infinite
             "gggggg",
             {s, 2 * s, 2 * s, kMaxFloat, kMaxFloat, kMaxFloat}},
        Case{{.initial_scale = 1024, .growth_steps = 2}, "bbbbbb", {512, 256, 128, 64, 32, 16}},
        Case{{.initial_scale = 16, .growth_steps = 2}, "bbbbbb", {8, 4, 2, 1, 1, 1}},
        Case{{.initial_scale = 1, .growth_steps = 1}, "gggbgg", {2, 4, 8, 4, 8, 16}},
        Case{{.initial_scale = 1, .growth_steps = 1}, "gbgbgb", {2, 1, 2, 1, 2, 1}},
        // A non-finite step begins a new period.
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

TEST(DynamicLossScale, NonFiniteGradientOfOneReplicaSkipsAll) {
  for (const auto aggregation : {GradientAggregation::kSum, GradientAggregation::kNone}) {
    for (const StrategyCase& each : all_strategies()) {
      const auto strategy = each.make();
      const auto scope = strategy->scope();
      Variable w(Tensor::ones({2}), {.name = "w"});
      Variable without(Tensor::ones({1}), {.name = "without_gradient"});
      Adam optimizer(std::vector{w, without},
                     {.dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8}});
      const std::string before = hash_variables(std::vector{w, without});
      const auto read = strategy->run([&] {
        // The sum of replica 0's infinity and another's negative infinity is NaN.
        const bool first = ReplicaContext::current().replica_id() == 0;
        const float value = first ? std::numeric_limits<float>::infinity() : -1.0f;
        const std::vector<Gradient> gradients = {vec({1.0f, value}), Gradient()};
        optimizer.apply_gradients(gradients, {.aggregation = aggregation});
        return w.value();
      });
      EXPECT_EQ(hash_variables(std::vector{w, without}), before) << each.name;
      EXPECT_EQ(optimizer.iterations().value().item_int(), 0) << each.name;
      for (const Variable& state : optimizer.state_variables()) {
        if (state.name() != "adam/dynamic_scale") continue;
        for (const double scale : components(state)) EXPECT_EQ(scale, 4.0) << each.name;
      }
      for (const double value : numbers(read)) EXPECT_EQ(value, 1.0) << each.name;
    }
  }
}

TEST(DynamicLossScale, MinimizeScalesAndDividesAgain) {
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
  for (const StrategyCase& each : all_strategies()) {
    const auto strategy = each.make();
    EXPECT_EQ(train(*strategy, std::nullopt),
              train(*strategy, DynamicLossScaleOptions{.initial_scale = 1024, .growth_steps = 2}))
        << each.name;
  }
}

}  // namespace
}  // namespace tutti::strategy_tests
