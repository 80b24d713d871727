// Moving averages of batch normalisation: made by the training call, so that none can be forgotten.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/model_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/logging.h"
#include "tutti/model/layers/average_loss.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/average_gradients.h"

namespace tutti {
namespace {

namespace normalization_updates_test {

constexpr double kMomentum = 0.75;
constexpr int kSteps = 5;
constexpr std::int64_t kRows = 12;
using model_tests::expect_near;

/// One feature; every step has other rows.
Tensor rows_of_all_steps() { return random_uniform({kSteps * kRows, 1}, {.seed = 31}, -1.0, 3.0); }

/// Mean and biased variance of rows [first, first + count).
std::pair<double, double> statistics_of(const std::vector<double>& x, std::int64_t first,
                                        std::int64_t count) {
  double mean = 0.0, variance = 0.0;
  for (std::int64_t i = first; i < first + count; ++i) mean += x[static_cast<std::size_t>(i)];
  mean /= static_cast<double>(count);
  for (std::int64_t i = first; i < first + count; ++i) {
    variance += (x[static_cast<std::size_t>(i)] - mean) * (x[static_cast<std::size_t>(i)] - mean);
  }
  return {mean, variance / static_cast<double>(count)};
}

/// What a replica's moving averages are after the first `steps` steps, of each of which it had
/// `count` rows from row `first` on: m^k * start + (1 - m) * sum of m^(k - 1 - s) * step s.
std::pair<double, double> closed_form(int steps, std::int64_t first, std::int64_t count) {
  const std::vector<double> x = rows_of_all_steps().to_doubles();
  double mean = 0.0, variance = std::pow(kMomentum, steps);
  for (int s = 0; s < steps; ++s) {
    const auto [step_mean, step_variance] = statistics_of(x, s * kRows + first, count);
    const double weight = (1.0 - kMomentum) * std::pow(kMomentum, steps - 1 - s);
    mean += weight * step_mean;
    variance += weight * step_variance;
  }
  return {mean, variance};
}

/// The mean over replicas with these rows of each step.
std::vector<double> mean_over(const std::vector<std::int64_t>& rows, int steps = kSteps) {
  std::vector<double> means(2, 0.0);
  std::int64_t first = 0;
  for (const std::int64_t count : rows) {
    const auto [mean, variance] = closed_form(steps, first, count);
    means[0] += mean / static_cast<double>(rows.size());
    means[1] += variance / static_cast<double>(rows.size());
    first += count;
  }
  return means;
}

std::vector<double> moving_averages_of(const Sequential& model) {
  std::vector<double> values;
  for (const Variable& variable : model.variables()) {
    if (variable.name().find("moving_") == std::string::npos) continue;
    values.push_back(variable.value().item_double());
  }
  return values;
}

Sequential normalized_model() {
  return Sequential(Input{{1}}, BatchNormalization({.momentum = kMomentum}), Dense(1));
}

/// Steps of a loop by hand under `strategy`; the moving averages then.
std::vector<double> after_steps(Strategy& strategy, bool training, bool frozen) {
  const auto scope = strategy.scope();
  BatchNormalization layer({.momentum = kMomentum});
  Sequential model(Input{{1}}, layer, Dense(1));
  if (frozen) layer.freeze();
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});
  const Dataset data = Dataset::from_tensor_slices({rows_of_all_steps()}).batch(kRows);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          const Tensor y = model(part.features(), {.training = training});
          const Tensor each = reduce_mean(square(y), {.axes = {1}});
          optimizer.minimize(tape, compute_average_loss(each, batch[0].global_rows()));
        },
        batch);
  }
  EXPECT_EQ(optimizer.iterations().value().item_int(), kSteps);
  return moving_averages_of(model);
}

/// Two towers: gradients, their mean, one update.
std::vector<double> after_steps_of_towers(bool training) {
  CentralStorageStrategy strategy({.local = {.devices = "cpu:0-1"}});
  const auto scope = strategy.scope();
  Sequential model = normalized_model();
  const std::vector<Variable> variables = model.trainable_variables();
  Sgd optimizer(variables, {.learning_rate = 0.1});
  const Dataset data = Dataset::from_tensor_slices({rows_of_all_steps()}).batch(kRows);
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
    const auto towers = strategy.run(
        [&](const Batch& part) {
          GradientTape tape;
          const Tensor loss = reduce_mean(square(model(part.features(), {.training = training})));
          return with_variables(tape.gradient(loss, variables), variables);
        },
        batch);
    const std::vector<Gradient> mean = gradients_of(average_gradients(towers.values()));
    strategy.run(
        [&] { optimizer.apply_gradients(mean, {.aggregation = GradientAggregation::kNone}); });
  }
  return moving_averages_of(model);
}

const std::vector<double> kUntouched = {0.0, 1.0};

}  // namespace normalization_updates_test

TEST(NormalizationUpdates, S1_11_AfterKStepsTheAveragesHaveTheirClosedForm) {
  using namespace normalization_updates_test;
  OneDeviceStrategy one("cpu:0");
  expect_near(after_steps(one, true, false), mean_over({12}), 1e-5);
  for (const char* devices : {"cpu:0-1", "cpu:0-2"}) {
    MirroredStrategy mirrored({.devices = devices});
    const auto replicas = static_cast<std::size_t>(mirrored.num_replicas_in_sync());
    const std::vector<std::int64_t> rows(replicas, 12 / static_cast<std::int64_t>(replicas));
    expect_near(after_steps(mirrored, true, false), mean_over(rows), 1e-5);
  }
  // Each replica counts alike, whatever its rows.
  MirroredStrategy unequal({.devices = "cpu:0-1", .replica_weights = {2, 1}});
  expect_near(after_steps(unequal, true, false), mean_over({8, 4}), 1e-5);
}

TEST(NormalizationUpdates, S1_11_AStepThatSkipsUpdatesLeavesThem) {
  using namespace normalization_updates_test;
  MirroredStrategy strategy({.devices = "cpu:0-1"});
  EXPECT_EQ(after_steps(strategy, false, false), kUntouched);
  EXPECT_EQ(after_steps(strategy, true, /*frozen=*/true), kUntouched);
}

TEST(NormalizationUpdates, S1_11_EveryTowersUpdateRunsAndTheirMeanIsRead) {
  using namespace normalization_updates_test;
  expect_near(after_steps_of_towers(true), mean_over({6, 6}), 1e-5);
  EXPECT_EQ(after_steps_of_towers(false), kUntouched);
}

TEST(NormalizationUpdates, S1_11_ForgettingTheTrainingFlagIsWarnedOfOnce) {
  using namespace normalization_updates_test;
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) warnings.emplace_back(line);
  });
  BatchNormalization layer({.name = "forgotten"}), frozen({.name = "frozen"}),
      trained({.name = "trained"});
  for (BatchNormalization* each : {&layer, &frozen, &trained}) each->build_for({1});
  frozen.freeze();
  const Tensor x = Tensor::ones({4, 1});
  (void)layer(x);  // evaluation: no tape
  (void)trained(x, {.training = true});
  {
    GradientTape tape;
    for (int call = 0; call < 3; ++call) (void)layer(x);
    (void)frozen(x);
    (void)trained(x);
  }
  set_log_sink(before);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::StartsWith("layer 'forgotten' is called with training = "
                                                 "false while a tape records"));
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("{.training = true}"));
}

}  // namespace
}  // namespace tutti
