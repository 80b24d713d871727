// Tests weight decay, moving averages, loss scaling and clipping, which all update rules share.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "optimizer/optimizer_state.h"
#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::shared_options_test {

const double kSharedNaN = std::numeric_limits<double>::quiet_NaN();
const double kSharedInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> names_of(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name());
  return names;
}

TEST(WeightDecay, AppliesToEveryBlockOfLongVariable) {
  std::vector<double> start = gradients_of_steps(1, 5003)[0];
  const auto steps = gradients_of_steps(3, start.size());
  const Variable w = variable(doubles(start), "w");
  Adam adam(std::vector{w}, {.weight_decay = 0.3});
  AdamW adamw(std::vector{variable(doubles(start), "w")}, {.weight_decay = 0.3});
  std::vector<double> without = start;
  const auto with = weights_after(adam, steps);
  EXPECT_EQ(with, weights_after(adamw, steps));
  // Each element gives the same result as if it were a separate variable.
  for (const std::size_t i : {0UL, 2047UL, 2048UL, 5002UL}) {
    AdamW alone(std::vector{variable(doubles({start[i]}), "w")}, {.weight_decay = 0.3});
    const auto weights = weights_after(alone, {{steps[0][i]}, {steps[1][i]}, {steps[2][i]}});
    EXPECT_EQ(weights[0], with[i]) << i;
  }
}

TEST(WeightDecay, AppliesToRowsWithoutGradient) {
  const Variable table(Tensor::from<double>({2, 1}, {1.0, 1.0}), {.name = "table"});
  Sgd sgd(std::vector{table}, {.learning_rate = 1.0, .weight_decay = 0.25});
  const Gradient rows(IndexedSlices{
      Tensor::from<double>({1, 1}, {0.5}), Tensor::from<std::int64_t>({1}, {1}), {2, 1}});
  sgd.apply_gradients({&rows, 1});
  expect_tensor(table.value(), {2, 1}, {0.75, 0.25});
}

TEST(WeightDecay, ExcludesVariablesByNameSubstring) {
  const Variable kernel = variable(doubles({1.0}), "dense/kernel");
  const Variable bias = variable(doubles({1.0}), "dense/bias");
  Sgd sgd(std::vector{kernel, bias}, {.learning_rate = 1.0, .weight_decay = 0.5});
  EXPECT_INVALID(sgd.exclude_from_weight_decay({"gamma"}), "sgd.exclude_from_weight_decay",
                 "'gamma'", "dense/kernel, dense/bias");
  sgd.exclude_from_weight_decay({"bias"});
  const std::vector<Gradient> gradients = {doubles({0.0}), doubles({0.0})};
  sgd.apply_gradients(gradients);
  EXPECT_EQ(kernel.value().item_double(), 0.5);
  EXPECT_EQ(bias.value().item_double(), 1.0);
  EXPECT_INVALID(Sgd(std::vector{kernel}, {.weight_decay = -0.1}), "sgd", "weight_decay", "-0.1");
}

TEST(MovingAverage, StartsAtFirstUpdate) {
  Sgd sgd(std::vector{variable(doubles({1.0}), "w")},
          {.learning_rate = 1.0, .ema = EmaOptions{.momentum = 0.9}});
  EXPECT_EQ(names_of(sgd.state_variables()),
            (std::vector<std::string>{"sgd/iteration", "sgd/learning_rate", "sgd/w/average"}));
  double w = 1.0, average = 0.0;
  const auto steps = gradients_of_steps(5, 1);
  for (std::size_t t = 0; t < steps.size(); ++t) {
    w -= steps[t][0];
    average = t == 0 ? w : 0.9 * average + 0.1 * w;
    EXPECT_NEAR(weights_after(sgd, {steps[t]})[0], w, 1e-14);
    EXPECT_NEAR(sgd.state_variables()[2].value().item_double(), average, 1e-14);
  }
  sgd.finalize_variable_values();
  EXPECT_NEAR(sgd.variables()[0].value().item_double(), average, 1e-14);
}

TEST(MovingAverage, IncludesVariablesWithoutGradient) {
  const Variable used = variable(doubles({1.0}), "used"), idle = variable(doubles({5.0}), "idle");
  Sgd sgd(std::vector{used, idle}, {.ema = EmaOptions{}});
  const std::vector<Gradient> gradients = {doubles({1.0}), Gradient()};
  for (int step = 0; step < 3; ++step) sgd.apply_gradients(gradients);
  sgd.finalize_variable_values();
  EXPECT_NEAR(idle.value().item_double(), 5.0, 1e-14);
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_INVALID(Sgd(w, {.ema = EmaOptions{.momentum = 1.5}}), "sgd", "ema momentum", "1.5");
  EXPECT_INVALID(Sgd(w, {.ema = EmaOptions{.overwrite_frequency = 0}}), "overwrite_frequency", "0");
}

TEST(FixedLossScale, UnscalesGradientsOfScaledLoss) {
  const Variable x = variable(doubles({3.0}), "x");
  Sgd sgd(std::vector{x}, {.learning_rate = 0.5, .loss_scale_factor = 1024.0});
  EXPECT_EQ(sgd.loss_scale(), 1024.0);
  {
    GradientTape tape;
    sgd.minimize(tape, square(x.value()));
  }
  EXPECT_EQ(x.value().item_double(), 0.0);
  x.storage().assign_replicated(AssignOp::kAssign, doubles({3.0}));
  GradientTape tape;
  const Tensor loss = sgd.scale_loss(square(x.value()));
  EXPECT_EQ(loss.to_doubles()[0], 9.0 * 1024.0);
  sgd.apply_gradients(tape.gradient(loss, sgd.variables()));
  EXPECT_EQ(x.value().item_double(), 0.0);
}

TEST(FixedLossScale, ClippingAppliesToUnscaledGradients) {
  Sgd sgd(std::vector{variable(doubles({0.0, 0.0}), "w")},
          {.learning_rate = 1.0, .clipping = {.clipnorm = 5.0}, .loss_scale_factor = 8.0});
  // the unscaled norm is 5, so nothing is clipped
  expect_near(weights_after(sgd, {{24.0, 32.0}}), {-3.0, -4.0}, 1e-15);
  EXPECT_INVALID(Sgd(std::vector{variable(doubles({0.0}), "w")}, {.loss_scale_factor = 0.0}),
                 "loss_scale_factor", "0");
}

TEST(AllFinite, ChecksEveryElement) {
  EXPECT_TRUE(all_finite(Gradient()));
  EXPECT_TRUE(all_finite(Gradient(doubles({}))));
  EXPECT_TRUE(all_finite(Gradient(doubles({1e308, -1e308, 0.0}))));
  EXPECT_TRUE(all_finite(Gradient(floats({std::numeric_limits<float>::max()}))));
  for (const double bad : {kSharedNaN, kSharedInfinity, -kSharedInfinity}) {
    for (const std::size_t place : {0UL, 5UL, 99UL}) {
      std::vector<double> values(100, 1.0);
      values[place] = bad;
      EXPECT_FALSE(all_finite(Gradient(doubles(values)))) << bad << " at " << place;
    }
  }
  const IndexedSlices rows{
      Tensor::from<double>({1, 1}, {kSharedNaN}), Tensor::from<std::int64_t>({1}, {2}), {4, 1}};
  EXPECT_FALSE(all_finite(Gradient(rows)));
}

TEST(DynamicLossScaleTest, NonFiniteGradientSkipsWholeUpdateOnce) {
  const Variable a = variable(doubles({1.0}), "a"), b = variable(doubles({1.0}), "b");
  Adam adam(std::vector{a, b}, {.learning_rate = 0.1,
                                .weight_decay = 0.5,
                                .ema = EmaOptions{},
                                .dynamic_loss_scale = DynamicLossScaleOptions{}});
  const std::vector<Gradient> gradients = {doubles({1.0}), doubles({kSharedInfinity})};
  adam.apply_gradients(gradients);
  EXPECT_EQ(a.value().item_double(), 1.0);
  EXPECT_EQ(b.value().item_double(), 1.0);
  EXPECT_EQ(adam.iterations().value().item_int(), 0);
  EXPECT_EQ(adam.loss_scale(), 16384.0);
  const auto state = adam.state_variables();
  ASSERT_EQ(state.size(), 10U);  // 4 numbers, then 3 slots for each variable
  for (std::size_t i = 4; i < state.size(); ++i) {
    EXPECT_EQ(state[i].value().item_double(), 0.0) << state[i].name();
  }
}

TEST(DynamicLossScaleTest, ScalingDoesNotAffectFiniteGradients) {
  const auto steps = gradients_of_steps(10, 3);
  Adam plain(std::vector{variable(doubles({1, 2, 3}), "w")});
  const auto expected = weights_after(plain, steps);
  Adam scaled(
      std::vector{variable(doubles({1, 2, 3}), "w")},
      {.dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 4.0, .growth_steps = 3}});
  for (const auto& step : steps) {
    std::vector<double> gradient = step;
    // the scale is a power of 2, so products are exact
    for (double& g : gradient) g *= scaled.loss_scale();
    weights_after(scaled, {gradient});
    weights_after(scaled, {{0.0, kSharedNaN, 1.0}});  // changes only the loss scale
    scaled.state_variables()[2].assign(scaled.loss_scale() * 4.0);
  }
  EXPECT_EQ(scaled.variables()[0].value().to_doubles(), expected);
}

TEST(DynamicLossScaleTest, StateUsesKerasNames) {
  const Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
                {.dynamic_loss_scale = DynamicLossScaleOptions{}});
  const auto state = sgd.state_variables();
  EXPECT_EQ(names_of(state), (std::vector<std::string>{"sgd/iteration", "sgd/learning_rate",
                                                       "sgd/dynamic_scale", "sgd/step_counter"}));
  EXPECT_EQ(state[2].value().item_double(), 32768.0);
  EXPECT_EQ(state[2].dtype(), DType::kFloat32);
}

TEST(DynamicLossScaleTest, StateResumesFromCheckpoint) {
  const DynamicLossScaleOptions options{.initial_scale = 8.0, .growth_steps = 3};
  const auto make = [&] {
    return std::make_unique<Sgd>(std::vector{variable(doubles({0.0}), "w")},
                                 SgdOptions{.dynamic_loss_scale = options});
  };
  const auto before = make(), after = make();
  weights_after(*before, {{1.0}, {kSharedNaN}, {1.0}, {1.0}});
  copy_state(*before, *after);
  EXPECT_EQ(after->loss_scale(), 4.0);
  weights_after(*after, {{1.0}});  // the third finite gradient in a row
  EXPECT_EQ(after->loss_scale(), 8.0);
}

/// Group of two replicas. The other replica has `num_bad` gradients with non-finite elements.
class GroupWithAnotherReplica final : public ReplicaGroup {
 public:
  explicit GroupWithAnotherReplica(std::int64_t num_bad) : num_bad_(num_bad) {}
  int replica_id() const override { return 0; }
  int num_replicas() const override { return 2; }
  int num_local_replicas() const override { return 1; }
  Tensor all_reduce(ReduceOp, const Tensor& own) override {
    return Tensor::scalar(static_cast<double>(own.item_int() + num_bad_), own.dtype());
  }
  Tensor all_gather(const Tensor& value, int) override { return value; }

 private:
  std::int64_t num_bad_;
};

TEST(DynamicLossScaleTest, NonFiniteGradientOnAnyReplicaSkipsUpdate) {
  for (const std::int64_t num_bad : {0, 1}) {
    GroupWithAnotherReplica group(num_bad);
    const ReplicaGroupScope scope(&group);
    Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
            {.learning_rate = 1.0,
             .dynamic_loss_scale = DynamicLossScaleOptions{.initial_scale = 8.0}});
    EXPECT_EQ(weights_after(sgd, {{8.0}})[0], num_bad == 0 ? -1.0 : 0.0);
    EXPECT_EQ(sgd.loss_scale(), num_bad == 0 ? 8.0 : 4.0);
    EXPECT_EQ(sgd.iterations().value().item_int(), num_bad == 0 ? 1 : 0);
  }
}

TEST(DynamicLossScaleTest, SpecWrapsAnyOptimizer) {
  const OptimizerSpec spec = with_dynamic_loss_scale("lion", {.initial_scale = 64.0});
  const auto lion = make_optimizer(spec, std::vector{variable(doubles({0.0}), "w")});
  EXPECT_EQ(lion->name(), "lion");
  EXPECT_EQ(lion->loss_scale(), 64.0);
}

TEST(DynamicLossScaleTest, RejectsTwoScalesAndInvalidOptions) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_ERROR(Sgd(w, {.loss_scale_factor = 2.0, .dynamic_loss_scale = DynamicLossScaleOptions{}}),
               kFailedPrecondition, "sgd", "loss_scale_factor", "dynamic_loss_scale");
  const auto make = [&](const DynamicLossScaleOptions& options) {
    Sgd(w, {.dynamic_loss_scale = options});
  };
  EXPECT_INVALID(make({.initial_scale = 0.5}), "initial_scale", "0.5");
  EXPECT_INVALID(make({.growth_steps = 0}), "growth_steps");
  EXPECT_INVALID(make({.multiplier = 1.0}), "multiplier");
}

IndexedSlices rows_with_a_duplicate() {
  return {Tensor::from<double>({3, 1}, {3.0, 1.0, 4.0}),
          Tensor::from<std::int64_t>({3}, {2, 0, 2}),
          {4, 1}};  // as a dense gradient: [1, 0, 7, 0]
}

TEST(ClippingTest, ClipsByValueOrPerGradientNorm) {
  const auto clipped = clip_gradients({doubles({-3, 0.5, 2}), Gradient()}, {.clipvalue = 1.0});
  expect_tensor(clipped[0].dense(), {3}, {-1, 0.5, 1});
  EXPECT_TRUE(clipped[1].is_none());
  const auto by_norm =
      clip_gradients({doubles({3, 4}), doubles({0.3, 0.4}), Gradient()}, {.clipnorm = 1.0});
  expect_tensor(by_norm[0].dense(), {2}, {0.6, 0.8}, 1e-15);
  expect_tensor(by_norm[1].dense(), {2}, {0.3, 0.4});  // unchanged: its norm is below the limit
  EXPECT_TRUE(by_norm[2].is_none());
}

TEST(ClippingTest, ClipsByGlobalNorm) {
  const std::vector<Gradient> gradients = {doubles({3, 0}), Gradient(), doubles({0, 4, 12})};
  // the global norm is 13
  const auto clipped = clip_gradients(gradients, {.global_clipnorm = 6.5});
  expect_tensor(clipped[0].dense(), {2}, {1.5, 0}, 1e-15);
  EXPECT_TRUE(clipped[1].is_none());
  expect_tensor(clipped[2].dense(), {3}, {0, 2, 6}, 1e-15);
  const auto within = clip_gradients(gradients, {.global_clipnorm = 13.0});
  expect_same_bits(within[2].dense(), gradients[2].dense());
}

/// Reducer that returns this replica's shard [3] of a sum [3, 4].
class ShardingReducer final : public GradientReducer {
 public:
  void begin(std::span<const Variable> variables) override { sums_.resize(variables.size()); }
  void ready(std::size_t index, const Gradient& gradient) override { sums_[index] = gradient; }
  std::vector<Gradient> finish() override { return sums_; }
  bool gives_shards() const override { return true; }
  Gradient whole(std::size_t, const Gradient&) override { return doubles({3, 4}); }
  void updates_done() override {}

 private:
  std::vector<Gradient> sums_;
};

TEST(ClippingTest, NormOfShardsMatchesNormOfFullGradient) {
  ShardingReducer reducer;
  const GradientReducerScope scope(&reducer);
  for (const ClippingOptions& clipping :
       {ClippingOptions{.clipnorm = 1.0}, ClippingOptions{.global_clipnorm = 1.0}}) {
    Sgd sgd(std::vector{variable(doubles({0.0}), "w")},
            {.learning_rate = 1.0, .clipping = clipping});
    EXPECT_DOUBLE_EQ(weights_after(sgd, {{3.0}})[0], -3.0 / 5.0);
  }
}

TEST(ClippingTest, DuplicateRowsAreSummedBeforeClipping) {
  EXPECT_DOUBLE_EQ(sum_of_squares(rows_with_a_duplicate()), 50.0);
  const auto by_norm = clip_gradients({rows_with_a_duplicate()}, {.clipnorm = std::sqrt(12.5)});
  EXPECT_TRUE(by_norm[0].is_slices());
  expect_tensor(by_norm[0].to_dense(), {4, 1}, {0.5, 0, 3.5, 0}, 1e-14);
  const auto by_value = clip_gradients({rows_with_a_duplicate()}, {.clipvalue = 5.0});
  expect_tensor(by_value[0].to_dense(), {4, 1}, {1, 0, 5, 0});
}

/// Returns the sum of squares in the documented order: within blocks of 4,096 elements from left to
/// right, then over the block sums in a tree that adds neighbours.
double norm_by_blocks(const std::vector<double>& values) {
  std::vector<double> sums;
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    double sum = 0.0;
    for (std::size_t i = first; i < std::min(values.size(), first + 4096); ++i) {
      sum += values[i] * values[i];
    }
    sums.push_back(sum);
  }
  while (sums.size() > 1) {
    std::vector<double> next;
    for (std::size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = next;
  }
  return sums.empty() ? 0.0 : sums[0];
}

TEST(ClippingTest, SumOfSquaresUsesFixedTree) {
  // The last count has 9 full blocks and a partial one.
  for (const std::size_t count : {0, 1, 4095, 4096, 4097, 30000, 9 * 4096 + 17}) {
    const auto values = gradients_of_steps(1, count)[0];
    EXPECT_EQ(sum_of_squares(doubles(values)), norm_by_blocks(values)) << count;
    const std::vector<float> single(values.begin(), values.end());
    EXPECT_EQ(sum_of_squares(floats(single)), norm_by_blocks({single.begin(), single.end()}))
        << count;
  }
  EXPECT_EQ(sum_of_squares(Gradient()), 0.0);
}

TEST(ClippingTest, RejectsSeveralKindsAndNonPositiveLimits) {
  const auto make = [](const ClippingOptions& clipping) {
    Sgd(std::vector{variable(doubles({0.0}), "w")}, {.clipping = clipping});
  };
  EXPECT_INVALID(make({.clipnorm = 1.0, .clipvalue = 1.0}), "sgd",
                 "at most one of clipnorm, clipvalue and global_clipnorm");
  EXPECT_INVALID(make({.clipnorm = -2.0}), "positive", "-2");
  EXPECT_INVALID(make({.global_clipnorm = 0.0}), "positive");
}

TEST(ClippingTest, AppliesToReducedGradient) {
  RecordingReducer reducer(/*num_replicas=*/4);
  const GradientReducerScope scope(&reducer);
  Sgd optimizer(std::vector{variable(doubles({0.0, 0.0}), "w")},
                {.learning_rate = 1.0, .clipping = {.global_clipnorm = 10.0}});
  // [3, 4] is within the limit. The sum over four replicas, [12, 16], has norm 20 and is halved.
  expect_near(weights_after(optimizer, {{3, 4}}), {-6, -8}, 1e-14);
}

TEST(ExponentialMovingAverage, AverageOfTrackedNumberMatchesClosedForm) {
  ExponentialMovingAverage averages({.decay = 0.9, .name = "avg"});
  averages.track_number("total_loss");
  EXPECT_EQ(averages.average("total_loss").name(), "total_loss/avg");
  // The average begins at 0. After n updates with the value 4.68, it is 4.68 * (1 - 0.9^n).
  for (int n = 1; n <= 20; ++n) {
    EXPECT_NEAR(averages.apply_number("total_loss", 4.68), 4.68 * (1.0 - std::pow(0.9, n)), 1e-5);
  }
}

TEST(ExponentialMovingAverage, AverageStartsAtVariableValue) {
  Variable w = variable(doubles({1.0, -2.0}), "w");
  ExponentialMovingAverage averages({.decay = 0.75});
  averages.track({&w, 1});
  const Variable& average = averages.average("w");
  EXPECT_EQ(average.name(), "w/ExponentialMovingAverage");
  EXPECT_FALSE(average.trainable());
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{1.0, -2.0}));
  w.assign(doubles({5.0, 2.0}));
  averages.apply();
  averages.apply();
  // The averages 5 - 4 * 0.75^2 and 2 - 4 * 0.75^2 are exactly representable.
  EXPECT_EQ(average.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{5.0, 2.0}));
  averages.assign_averages();
  EXPECT_EQ(w.value().to_doubles(), (std::vector<double>{2.75, -0.25}));
}

TEST(ExponentialMovingAverage, DecayIncreasesWithUpdateCount) {
  const ExponentialMovingAverage averages;
  EXPECT_EQ(averages.decay_after(std::nullopt), 0.9999);
  EXPECT_EQ(averages.decay_after(0), 0.1);
  EXPECT_EQ(averages.decay_after(8), 0.5);
  EXPECT_EQ(averages.decay_after(89'989), 89'990.0 / 89'999.0);  // the last decay below 0.9999
  EXPECT_EQ(averages.decay_after(1'000'000), 0.9999);
  Variable w = variable(doubles({0.0}), "w");
  ExponentialMovingAverage moving;
  moving.track({&w, 1});
  w.assign(1.0);
  moving.apply(8);
  EXPECT_EQ(moving.average("w").value().item_double(), 0.5);
}

TEST(ExponentialMovingAverage, ListsAveragesOfVariablesBeforeThoseOfNumbers) {
  const std::vector<Variable> variables = {variable(floats({1}), "a"), variable(floats({2}), "b")};
  ExponentialMovingAverage averages({.name = "avg"});
  averages.track_number("loss");
  averages.track(variables);
  std::vector<std::string> names;
  for (const Variable& each : averages.averages()) names.push_back(each.name());
  EXPECT_EQ(names, (std::vector<std::string>{"a/avg", "b/avg", "loss/avg"}));
}

TEST(ExponentialMovingAverage, RejectsInvalidUse) {
  EXPECT_INVALID(ExponentialMovingAverage({.decay = 1.5}), "decay in [0, 1]", "1.5");
  EXPECT_INVALID(ExponentialMovingAverage({.name = ""}), "name");
  ExponentialMovingAverage averages;
  const Variable w = variable(floats({1}), "w");
  averages.track({&w, 1});
  averages.track_number("loss");
  EXPECT_ERROR(averages.track({&w, 1}), kAlreadyExists, "'w'");
  EXPECT_ERROR(averages.track_number("loss"), kAlreadyExists, "'loss'");
  EXPECT_ERROR(averages.average("lost"), kNotFound, "'lost'", "[w, loss]");
  const Variable count(Tensor::scalar(0, DType::kInt64), {.name = "count"});
  EXPECT_INVALID(averages.track({&count, 1}), "'count'", "int64");
}

}  // namespace tutti::testing::shared_options_test
